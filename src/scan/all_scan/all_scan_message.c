/* Messages between positions, and what a message that carries a map looks like. */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "core/context.h"
#include "scan/all_scan/all_scan.h"

carry_status carry_all_scan_send(carry_all_scan_plan *plan, int64_t request, const void *from, size_t bytes,
                                 int position) {
    CARRY_TRY(
        carry_isend(plan->comm, &plan->sends[request], from, bytes, carry_all_scan_rank(plan, position), plan->tag));
    plan->counts.bytes_sent += (int64_t)bytes;
    plan->counts.messages++;
    return CARRY_OK;
}

carry_status carry_all_scan_receive(carry_all_scan_plan *plan, int64_t request, void *to, size_t bytes, int position) {
    CARRY_TRY(
        carry_irecv(plan->comm, &plan->receives[request], to, bytes, carry_all_scan_rank(plan, position), plan->tag));
    plan->counts.bytes_received += (int64_t)bytes;
    plan->counts.messages++;
    return CARRY_OK;
}

carry_status carry_all_scan_arrived(carry_all_scan_plan *plan, carry_request *request, bool wait, bool *here) {
    int done = 0;
    CARRY_TRY(carry_test(request, &done));
    *here = done != 0;
    if (*here || !wait) {
        return CARRY_OK;
    }
    CARRY_SPAN(plan->ctx, "comm", "all_scan wait");
    *here = true;
    return carry_wait(request);
}

static size_t padded(size_t bytes) {
    return (bytes + CARRY_ALL_SCAN_LINE - 1) / CARRY_ALL_SCAN_LINE * CARRY_ALL_SCAN_LINE;
}

size_t carry_all_scan_pair_bytes(const carry_all_scan_problem *problem, int64_t numbers) {
    const size_t L = CARRY_ALL_SCAN_LINE + padded(carry_all_scan_state_bytes(problem));
    return L + padded((size_t)(problem->heads * numbers) * carry_dtype_size(problem->wire));
}

void carry_all_scan_put_role(void *message, carry_all_scan_role role) {
    memset(message, 0, CARRY_ALL_SCAN_LINE);
    *(unsigned char *)message = (unsigned char)role;
}

/* What is none of them is a map: then only numbers can be wrong. */
carry_all_scan_role carry_all_scan_get_role(const void *message) {
    const unsigned char role = *(const unsigned char *)message;
    return role <= CARRY_ALL_SCAN_PASS ? (carry_all_scan_role)role : CARRY_ALL_SCAN_MAP;
}

char *carry_all_scan_pair_L(void *message) {
    return (char *)message + CARRY_ALL_SCAN_LINE;
}

char *carry_all_scan_pair_map(const carry_all_scan_problem *problem, void *message) {
    return (char *)message + carry_all_scan_pair_bytes(problem, 0);
}

bool carry_all_scan_fits(size_t bytes, char *why, size_t why_size) {
    if (bytes <= INT_MAX) {
        return true;
    }
    (void)snprintf(why, why_size, "a message would have %zu bytes, and at most %d fit", bytes, INT_MAX);
    return false;
}
