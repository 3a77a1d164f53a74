/* Growth of a cost: the slope of log(cost) over log(size), by least squares. Tests only. */
#ifndef TESTS_RUNTIME_SLOPE_H
#define TESTS_RUNTIME_SLOPE_H

#include <math.h>
#include <stddef.h>

static inline double slope_of(const double *size, const double *cost, size_t n)
{
    double mx = 0, my = 0, sxy = 0, sxx = 0;
    for (size_t i = 0; i < n; i++) {
        mx += log(size[i]) / (double)n;
        my += log(cost[i]) / (double)n;
    }
    for (size_t i = 0; i < n; i++) {
        sxy += (log(size[i]) - mx) * (log(cost[i]) - my);
        sxx += (log(size[i]) - mx) * (log(size[i]) - mx);
    }
    return sxy / sxx;
}

#endif
