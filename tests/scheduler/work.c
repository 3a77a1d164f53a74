#include "tests/scheduler/work.h"

static uint64_t done;

void __sanitizer_cov_trace_pc(void);
void __sanitizer_cov_trace_pc(void)
{
    done++;
}

uint64_t work_done(void)
{
    return done;
}
