/* Settings on which the ranks must agree, compared by rank 0 when a communicator is opened: one message each way, so
   that a thousand ranks can be opened. The record has a fixed size and layout: builds that differ must be able to read
   it. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "comm/backend.h"
#include "core/context.h"

#define FIELD 64

typedef struct record {
    char version[FIELD], build[FIELD], agreement[CARRY_MAX_AGREEMENT_BYTES];
} record;

typedef struct verdict {
    char differs; /* 0: they agree */
    char text[CARRY_COMM_REASON - 1];
} verdict;

static void fill(record *mine, const char *agreement) {
    memset(mine, 0, sizeof *mine); /* all bytes are sent, including padding */
    (void)snprintf(mine->version, sizeof mine->version, "%s", carry_version());
    (void)snprintf(mine->build, sizeof mine->build, "%d bits, %s endian, compiler %.32s", (int)(8 * sizeof(void *)),
                   __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? "little" : "big", __VERSION__);
    (void)snprintf(mine->agreement, sizeof mine->agreement, "%s", agreement);
}

static void add(verdict *v, const char *format, ...) CARRY_PRINTF(2, 3);

static void add(verdict *v, const char *format, ...) {
    const size_t used = strlen(v->text);
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(v->text + used, sizeof v->text - used, format, arguments);
    va_end(arguments);
}

/* Reports the first difference in full, and the differences of later ranks as far as the buffer allows. */
static void compare(verdict *v, const char *what, const char *first, const char *other, int rank) {
    if (strcmp(first, other) == 0) {
        return;
    }
    if (!v->differs) {
        add(v, "the ranks differ: %s: rank 0 has '%s'", what, first);
    }
    v->differs = 1;
    add(v, ", rank %d has %s '%s'", rank, what, other);
}

static carry_status judge(carry_comm *comm, const record *mine, verdict *v) {
    for (int rank = 1; rank < comm->size; rank++) {
        record other;
        const carry_deadline deadline = carry_deadline_from_now(comm, "open");
        carry_comm_post_recv(comm, comm->requests, "open", &other, sizeof other, rank, CARRY_TAG_HANDSHAKE);
        CARRY_TRY(carry_comm_wait_all(comm, comm->requests, 1, &deadline));
        other.version[FIELD - 1] = other.build[FIELD - 1] = other.agreement[CARRY_MAX_AGREEMENT_BYTES - 1] = '\0';
        compare(v, "version", mine->version, other.version, rank);
        compare(v, "build", mine->build, other.build, rank);
        compare(v, "agreement", mine->agreement, other.agreement, rank);
    }
    return CARRY_OK;
}

carry_status carry_comm_handshake(carry_comm *comm, const char *agreement) {
    record mine;
    verdict v = {0};
    fill(&mine, agreement);
    if (comm->rank == 0) {
        CARRY_TRY(judge(comm, &mine, &v));
    } else {
        const carry_deadline deadline = carry_deadline_from_now(comm, "open");
        carry_comm_post_send(comm, comm->requests, "open", &mine, sizeof mine, 0, CARRY_TAG_HANDSHAKE);
        CARRY_TRY(carry_comm_wait_all(comm, comm->requests, 1, &deadline));
    }
    CARRY_TRY(carry_broadcast(comm, &v, sizeof v, 0));
    v.text[sizeof v.text - 1] = '\0';
    return v.differs ? carry_fail(comm->ctx, CARRY_EARGUMENT, "%s", v.text) : CARRY_OK;
}
