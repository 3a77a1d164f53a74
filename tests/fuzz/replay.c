/* Runs a fuzz target over every file of the folders named, without libFuzzer: the regression test
 * of the corpora, in the sanitizer build and with any compiler. */
#include <dirent.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static int run_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    struct stat st;
    uint8_t *data;
    size_t n;

    if (!f || fstat(fileno(f), &st)) {
        perror(path);
        if (f) fclose(f);
        return -1;
    }
    n = (size_t)st.st_size;
    data = malloc(n ? n : 1); /* exactly n bytes, so that a read past the end is seen */
    if (!data || fread(data, 1, n, f) != n) {
        perror(path);
        free(data);
        fclose(f);
        return -1;
    }
    fclose(f);
    fprintf(stderr, "%s\n", path); /* the last one named is the one that crashed */
    LLVMFuzzerTestOneInput(data, n);
    free(data);
    return 0;
}

int main(int argc, char **argv)
{
    int files = 0;

    for (int i = 1; i < argc; i++) {
        DIR *dir = opendir(argv[i]);
        struct dirent *e;

        if (!dir) {
            perror(argv[i]);
            return 1;
        }
        while ((e = readdir(dir))) {
            char path[PATH_MAX];

            if (e->d_name[0] == '.') continue;
            snprintf(path, sizeof path, "%s/%s", argv[i], e->d_name);
            if (run_file(path)) return 1;
            files++;
        }
        closedir(dir);
    }
    printf("%d inputs\n", files);
    return files ? 0 : 1;
}
