/* Loaded before the C library. The file named by SLOW_SYNC_SWITCH says by how many milliseconds every sync
   takes longer, and every write that syncs itself (O_DSYNC). If it says "hold", a sync waits until the file is
   gone, while such writes take as long as ever; each sync that waits adds the name of its function to a file
   with the same name and ".held" behind it. Without the switch file nothing changes. */
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

static void hold(const char *name, const char *what)
{
    struct timespec moment = {0, 1000000};
    char held[PATH_MAX];
    snprintf(held, sizeof held, "%s.held", name);
    int fd = open(held, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (fd >= 0) {
        dprintf(fd, "%s\n", what);
        close(fd);
    }
    while (access(name, F_OK) == 0)
        nanosleep(&moment, NULL);
}

/* `what` is the function that syncs, or NULL for a write. */
static void wait_if_told(const char *what)
{
    const char *name = getenv("SLOW_SYNC_SWITCH");
    char text[16] = {0};
    int fd = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
    if (strncmp(text, "hold", 4) == 0) {
        if (what)
            hold(name, what);
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
    wait_if_told("fsync");
    return next(fd);
}

int fdatasync(int fd)
{
    static int (*next)(int);
    if (!next)
        next = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    wait_if_told("fdatasync");
    return next(fd);
}

int msync(void *start, size_t size, int flags)
{
    static int (*next)(void *, size_t, int);
    if (!next)
        next = (int (*)(void *, size_t, int))dlsym(RTLD_NEXT, "msync");
    wait_if_told("msync");
    return next(start, size, flags);
}

static int syncs_itself(int fd)
{
    int flags = fcntl(fd, F_GETFL);
    return flags >= 0 && flags & O_DSYNC;
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at)
{
    static ssize_t (*next)(int, const void *, size_t, off_t);
    if (!next)
        next = (ssize_t (*)(int, const void *, size_t, off_t))dlsym(RTLD_NEXT, "pwrite");
    if (syncs_itself(fd))
        wait_if_told(NULL);
    return next(fd, data, size, at);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at)
{
    static ssize_t (*next)(int, const void *, size_t, off64_t);
    if (!next)
        next = (ssize_t (*)(int, const void *, size_t, off64_t))dlsym(RTLD_NEXT, "pwrite64");
    if (syncs_itself(fd))
        wait_if_told(NULL);
    return next(fd, data, size, at);
}
