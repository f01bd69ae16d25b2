/* Names and texts of the status list. */
#include "carry/status.h"

static const char *const names[] = {
#define X(name, text) #name,
    CARRY_STATUS_LIST(X)
#undef X
};

static const char *const texts[] = {
#define X(name, text) text,
    CARRY_STATUS_LIST(X)
#undef X
};

static int is_known(carry_status status) {
    return (unsigned)status < sizeof names / sizeof names[0];
}

const char *carry_status_name(carry_status status) {
    return is_known(status) ? names[status] : "?";
}

const char *carry_status_text(carry_status status) {
    return is_known(status) ? texts[status] : "unknown status";
}
