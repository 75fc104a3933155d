/* Loaded before the C library (LD_PRELOAD): each sync of a file takes DELAY_MS longer. Made by scripts/slow_disk.py. */
#define _GNU_SOURCE
#include <errno.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static void wait_for_the_disk(void) {
    int before = errno;
    struct timespec left = {DELAY_MS / 1000, DELAY_MS % 1000 * 1000000L};
    while (nanosleep(&left, &left) == -1 && errno == EINTR) {
    }
    errno = before;
}

int fsync(int fd) {
    wait_for_the_disk();
    return (int)syscall(SYS_fsync, fd);
}

int fdatasync(int fd) {
    wait_for_the_disk();
    return (int)syscall(SYS_fdatasync, fd);
}
