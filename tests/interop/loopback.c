/*
 * Keeps a program's listeners on this host.
 *
 * The reference engine always listens on the wildcard address, and nothing in its configuration changes that.
 * Preloaded, this library replaces the wildcard by the loopback address in every bind call. A dual-stack IPv6
 * socket gets the IPv4-mapped loopback address, so that IPv4 peers still reach it.
 *
 * Build: cc -O2 -shared -fPIC -o loopback.so loopback.c -ldl
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

typedef int (*bind_call)(int, const struct sockaddr *, socklen_t);

static const struct in6_addr mapped_loopback = {
    {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1}}};

int bind(int fd, const struct sockaddr *address, socklen_t length)
{
    bind_call next = (bind_call)dlsym(RTLD_NEXT, "bind");
    struct sockaddr_storage narrowed;

    if (!next) {
        errno = ENOSYS;
        return -1;
    }
    if (!address || length > sizeof narrowed)
        return next(fd, address, length);
    memcpy(&narrowed, address, length);

    if (address->sa_family == AF_INET && length >= sizeof(struct sockaddr_in)) {
        struct sockaddr_in *v4 = (struct sockaddr_in *)&narrowed;
        if (v4->sin_addr.s_addr == htonl(INADDR_ANY))
            v4->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    } else if (address->sa_family == AF_INET6 && length >= sizeof(struct sockaddr_in6)) {
        struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&narrowed;
        if (IN6_IS_ADDR_UNSPECIFIED(&v6->sin6_addr))
            v6->sin6_addr = mapped_loopback;
    }
    return next(fd, (const struct sockaddr *)&narrowed, length);
}
