/* Messages between positions, and the layout of a message that carries a map. */
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

carry_status carry_all_scan_send_pair(carry_all_scan_plan *plan, int64_t request, const void *from, size_t bytes,
                                      int position) {
    if (plan->device > 0) {
        plan->roles_sent[request] = (unsigned char)plan->sent_role;
        CARRY_TRY(carry_isend(plan->host, &plan->role_sends[request], &plan->roles_sent[request], 1,
                              carry_all_scan_rank(plan, position), plan->tag));
    }
    return carry_all_scan_send(plan, request, from, bytes, position);
}

carry_status carry_all_scan_receive_pair(carry_all_scan_plan *plan, int64_t request, void *to, size_t bytes,
                                         int position) {
    if (plan->device > 0) {
        CARRY_TRY(carry_irecv(plan->host, &plan->role_receives[request], &plan->roles_got[request], 1,
                              carry_all_scan_rank(plan, position), plan->tag));
    }
    return carry_all_scan_receive(plan, request, to, bytes, position);
}

/* The request of the role's message beside a request, or NULL on the CPU. */
static carry_request *role_of(const carry_all_scan_plan *plan, const carry_request *request) {
    if (plan->device == 0) {
        return NULL;
    }
    const bool is_send = request >= plan->sends && request < plan->sends + plan->requests;
    return is_send ? &plan->role_sends[request - plan->sends] : &plan->role_receives[request - plan->receives];
}

carry_status carry_all_scan_arrived(carry_all_scan_plan *plan, carry_request *request, bool wait, bool *here) {
    carry_request *role = role_of(plan, request);
    int done = 0, told = 1;
    CARRY_TRY(carry_test(request, &done));
    if (role != NULL) {
        CARRY_TRY(carry_test(role, &told));
    }
    *here = done != 0 && told != 0;
    if (*here || !wait) {
        return CARRY_OK;
    }
    CARRY_SPAN(plan->ctx, "comm", "all_scan wait");
    *here = true;
    CARRY_TRY(carry_wait(request));
    return role != NULL ? carry_wait(role) : CARRY_OK;
}

static size_t padded(size_t bytes) {
    return (bytes + CARRY_ALL_SCAN_LINE - 1) / CARRY_ALL_SCAN_LINE * CARRY_ALL_SCAN_LINE;
}

size_t carry_all_scan_pair_bytes(const carry_all_scan_problem *problem, int64_t numbers) {
    const size_t L = CARRY_ALL_SCAN_LINE + padded(carry_all_scan_state_bytes(problem));
    return L + padded((size_t)(problem->heads * numbers) * carry_dtype_size(problem->wire));
}

void carry_all_scan_put_role(carry_all_scan_plan *plan, void *message, size_t bytes, carry_all_scan_role role) {
    plan->sent_role = role;
    if (role != CARRY_ALL_SCAN_MAP && bytes > 0) {
        plan->arith->clear(plan, message, bytes);
    }
    if (plan->device == 0) {
        memset(message, 0, CARRY_ALL_SCAN_LINE);
        *(unsigned char *)message = (unsigned char)role;
    }
}

/* An unknown role is read as a map: then only numbers can be wrong. */
carry_all_scan_role carry_all_scan_get_role(const carry_all_scan_plan *plan, int64_t request, const void *message) {
    const unsigned char role = plan->device > 0 ? plan->roles_got[request] : *(const unsigned char *)message;
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
