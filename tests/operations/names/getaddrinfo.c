/*
 * What the system's resolver says, for one process under test: preloaded (LD_PRELOAD), it takes the address of a name from the
 * file that the variable NAMES names, at each call. A line is a name and an address; "-" cannot be resolved. Other names go to
 * the resolver itself.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int resolve(const char *, const char *, const struct addrinfo *, struct addrinfo **);

int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **found) {
    resolve *real = (resolve *)dlsym(RTLD_NEXT, "getaddrinfo");
    const char *names = getenv("NAMES");
    FILE *file = node && names ? fopen(names, "re") : NULL;
    char name[256], address[64];
    int named = 0;
    while (file && !named && fscanf(file, "%255s %63s", name, address) == 2)
        named = strcmp(name, node) == 0;
    if (file)
        fclose(file);
    if (named && strcmp(address, "-") == 0)
        return EAI_AGAIN;
    return real(named ? address : node, service, hints, found);
}
