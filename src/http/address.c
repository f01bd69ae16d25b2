/* Counts connections and wrong tokens per address. Only the first 64 bits of an IPv6 address count, because one owner
   controls the others. An entry without connections is kept for its count of wrong tokens, until another address needs
   it. */
#include <netinet/in.h>
#include <string.h>

#include "core/clock.h"
#include "http/http_internal.h"

#define GUESSES 10.0           /* wrong tokens at once */
#define GUESSES_PER_SECOND 1.0 /* afterwards */

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

carry_http_address *carry_http_address_of(carry_http_server *server, const struct sockaddr_storage *from) {
    unsigned char key[16];
    carry_http_address *unused = NULL;
    key_of(key, from);
    for (int i = 0; i < server->address_count; i++) {
        carry_http_address *at = &server->addresses[i];
        if (memcmp(at->key, key, sizeof key) == 0) {
            return at;
        }
        if (at->open == 0 && (unused == NULL || at->guessed_at < unused->guessed_at)) {
            unused = at;
        }
    }
    if (unused != NULL) { /* true in practice: there are more entries than connections */
        *unused = (carry_http_address){.guesses = GUESSES};
        memcpy(unused->key, key, sizeof key);
    }
    return unused;
}

static void refill(carry_http_address *address) {
    double now = carry_seconds();
    double more = address->guesses + GUESSES_PER_SECOND * (now - address->guessed_at);
    address->guesses = address->guessed_at == 0.0 || more > GUESSES ? GUESSES : more;
    address->guessed_at = now;
}

bool carry_http_may_guess(carry_http_address *address) {
    refill(address);
    return address->guesses >= 1.0;
}

void carry_http_guessed_wrong(carry_http_address *address) {
    refill(address);
    address->guesses -= 1.0;
}
