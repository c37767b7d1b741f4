/*
 * What one process under test forces to disk: preloaded (LD_PRELOAD), it appends the path of each file to the file that the variable
 * SYNCED names, if it is forced by fdatasync and not by SQLite itself. A file whose path ends with the contents of the file
 * SYNCED.hangs hangs for as long as that is there.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static ssize_t path_of(int file, char path[4096]) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    return readlink(link, path, 4095);
}

static int hangs(int file) {
    char name[4096], path[4096], ending[64];
    snprintf(name, sizeof name, "%s.hangs", getenv("SYNCED"));
    int opened = open(name, O_RDONLY | O_CLOEXEC);
    if (opened < 0) return 0;
    ssize_t bytes = read(opened, ending, sizeof ending), before = path_of(file, path) - bytes;
    close(opened);
    return bytes > 0 && before >= 0 && memcmp(path + before, ending, bytes) == 0;
}

int fsync(int file) {
    while (hangs(file)) usleep(10000);
    return ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(file);
}

int fdatasync(int file) {
    while (hangs(file)) usleep(10000);
    char line[4096];
    ssize_t bytes = path_of(file, line);
    int synced = open(getenv("SYNCED"), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (bytes > 0 && synced >= 0) {
        line[bytes++] = '\n';
        bytes = write(synced, line, bytes);
    }
    close(synced);
    return ((int (*)(int))dlsym(RTLD_NEXT, "fdatasync"))(file);
}
