/* Notifies systemd: ready, alive, stopping. Does nothing in a build without libsystemd. Loop
 * thread. */
#include "server/internal.h"

#ifdef HAVE_SYSTEMD
#include <systemd/sd-daemon.h>

void srv_notify(const char *state)
{
    sd_notify(0, state);
}

uint64_t srv_notify_watchdog_ns(void)
{
    uint64_t us = 0;
    return sd_watchdog_enabled(0, &us) > 0 ? us * 1000 : 0;
}
#else
void srv_notify(const char *state)
{
}

uint64_t srv_notify_watchdog_ns(void)
{
    return 0;
}
#endif
