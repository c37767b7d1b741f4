/*
 * What one process under test forces to disk: preloaded (LD_PRELOAD), it appends the path of each file to the file that the variable
 * SYNCED names.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int fdatasync(int file) {
    char link[64], line[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t bytes = readlink(link, line, sizeof line - 1);
    int synced = open(getenv("SYNCED"), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (bytes > 0 && synced >= 0) {
        line[bytes++] = '\n';
        bytes = write(synced, line, bytes);
    }
    close(synced);
    return ((int (*)(int))dlsym(RTLD_NEXT, "fdatasync"))(file);
}
