/* How much of the server one address has. An IPv4 address counts alone, of an IPv6 address the first 64 bits: the owner
   of one has them all. Entries of addresses without connections are kept while there is room, for their guesses. */
#include <netinet/in.h>
#include <string.h>

#include "core/clock.h"
#include "http/http_internal.h"

#define GUESSES 10.0           /* wrong tokens at once */
#define GUESSES_PER_SECOND 1.0 /* and then */

static void key_of(unsigned char key[16], const struct sockaddr_storage *from) {
    static const unsigned char mapped[12] = {[10] = 0xFF, [11] = 0xFF};
    memset(key, 0, 16);
    if (from->ss_family == AF_INET) {
        memcpy(key, mapped, 12);
        memcpy(key + 12, &((const struct sockaddr_in *)from)->sin_addr, 4);
    } else if (from->ss_family == AF_INET6) {
        const unsigned char *bytes = ((const struct sockaddr_in6 *)from)->sin6_addr.s6_addr;
        memcpy(key, bytes, memcmp(bytes, mapped, 12) == 0 ? 16 : 8);
    }
}

carry_address *carry_server_address(carry_server *server, const struct sockaddr_storage *from) {
    unsigned char key[16];
    carry_address *free_one = NULL;
    key_of(key, from);
    for (int i = 0; i < CARRY_SERVER_ADDRESSES; i++) {
        carry_address *at = &server->addresses[i];
        if (memcmp(at->key, key, sizeof key) == 0) {
            return at;
        }
        if (at->open == 0 && (free_one == NULL || at->guessed_at < free_one->guessed_at)) {
            free_one = at;
        }
    }
    if (free_one != NULL) { /* there are more entries than connections */
        *free_one = (carry_address){.guesses = GUESSES};
        memcpy(free_one->key, key, sizeof key);
    }
    return free_one;
}

static void refill(carry_address *address) {
    double now = carry_seconds();
    double more = address->guesses + GUESSES_PER_SECOND * (now - address->guessed_at);
    address->guesses = address->guessed_at == 0.0 || more > GUESSES ? GUESSES : more;
    address->guessed_at = now;
}

bool carry_server_may_guess(carry_address *address) {
    refill(address);
    return address->guesses >= 1.0;
}

void carry_server_guessed_wrong(carry_address *address) {
    refill(address);
    address->guesses -= 1.0;
}
