/* Loaded before the C library: every sync takes longer, by as many milliseconds as stand in the file that
   SLOW_SYNC_SWITCH names. Without that file nothing changes. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static void wait_if_told(void)
{
    const char *name = getenv("SLOW_SYNC_SWITCH");
    char text[16] = {0};
    int fd = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
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
