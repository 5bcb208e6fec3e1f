/* Loaded before the C library. The file named by SLOW_SYNC_SWITCH says by how many milliseconds every sync
   takes longer. If it says "hold", a sync waits until the file is gone; while it waits there is a file with the
   same name and ".held" behind it. Without the switch file nothing changes. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static void hold(const char *name)
{
    struct timespec moment = {0, 1000000};
    char held[PATH_MAX];
    snprintf(held, sizeof held, "%s.held", name);
    close(open(held, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    while (access(name, F_OK) == 0)
        nanosleep(&moment, NULL);
}

static void wait_if_told(void)
{
    const char *name = getenv("SLOW_SYNC_SWITCH");
    char text[16] = {0};
    int fd = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
    if (strncmp(text, "hold", 4) == 0) {
        hold(name);
        return;
    }
    long ms = got > 0 ? strtol(text, NULL, 10) : 0;
    struct timespec pause = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&pause, NULL);
}

int fsync(int fd)
{
    static int (*next)(int);
    if (!next)
        next = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    wait_if_told();
    return next(fd);
}

int fdatasync(int fd)
{
    static int (*next)(int);
    if (!next)
        next = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    wait_if_told();
    return next(fd);
}

int msync(void *start, size_t size, int flags)
{
    static int (*next)(void *, size_t, int);
    if (!next)
        next = (int (*)(void *, size_t, int))dlsym(RTLD_NEXT, "msync");
    wait_if_told();
    return next(start, size, flags);
}
