/* Ranks as threads. All are started before the first one works: if one cannot be started, none runs. */
#include "comm/ranks.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "core/context.h"

typedef struct member {
    carry_rank self;
    pthread_t thread;
    carry_status status;
} member;

struct carry_ranks {
    int size;
    carry_rank_function function;
    void *user;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool decided, go; /* decided: all are started (go), or one could not be */
    int waiting, left;
    unsigned round; /* of barriers */
    void *shared;   /* or NULL */
    const carry_rank_shared *kind;
    unsigned char has_left[CARRY_RANKS]; /* ranks that left before the shared object was made */
    member member[];
};

static void leave(struct carry_ranks *all, int rank) {
    pthread_mutex_lock(&all->lock);
    all->left++;
    all->has_left[rank] = 1;
    if (all->shared != NULL) {
        all->kind->leave(all->shared, rank);
    }
    pthread_cond_broadcast(&all->changed);
    pthread_mutex_unlock(&all->lock);
}

static void *rank_main(void *argument) {
    member *m = argument;
    struct carry_ranks *all = m->self.all;
    pthread_mutex_lock(&all->lock);
    while (!all->decided) {
        pthread_cond_wait(&all->changed, &all->lock);
    }
    bool go = all->go;
    pthread_mutex_unlock(&all->lock);
    if (go) {
        m->status = all->function(all->user, &m->self);
        leave(all, m->self.rank);
    }
    return NULL;
}

static void decide(struct carry_ranks *all, bool go) {
    pthread_mutex_lock(&all->lock);
    all->decided = true;
    all->go = go;
    pthread_cond_broadcast(&all->changed);
    pthread_mutex_unlock(&all->lock);
}

/* Returns how many of ranks 1..size-1 were started; *code is the error of the first that was not. */
static int start_all(struct carry_ranks *all, int *code) {
    for (int i = 1; i < all->size; i++) {
        *code = pthread_create(&all->member[i].thread, NULL, rank_main, &all->member[i]);
        if (*code != 0) {
            return i - 1;
        }
    }
    return all->size - 1;
}

/* The rank whose error is reported. A rank's own error says more than its peers' reports that it is missing. */
static int worst_of(const struct carry_ranks *all) {
    int worst = -1;
    for (int i = 0; i < all->size; i++) {
        carry_status status = all->member[i].status;
        if (status != CARRY_OK && (worst < 0 || (all->member[worst].status == CARRY_EPEER && status != CARRY_EPEER))) {
            worst = i;
        }
    }
    return worst;
}

void *carry_rank_share(const carry_rank *self, const carry_rank_shared *kind) {
    struct carry_ranks *all = self->all;
    pthread_mutex_lock(&all->lock);
    if (all->shared == NULL) {
        all->shared = kind->make(all->size);
        all->kind = kind;
        for (int i = 0; i < all->size && all->shared != NULL; i++) {
            if (all->has_left[i]) {
                kind->leave(all->shared, i);
            }
        }
    }
    void *shared = all->kind == kind ? all->shared : NULL;
    pthread_mutex_unlock(&all->lock);
    return shared;
}

carry_status carry_rank_barrier(const carry_rank *self) {
    struct carry_ranks *all = self->all;
    pthread_mutex_lock(&all->lock);
    unsigned round = all->round;
    if (++all->waiting == all->size) {
        all->waiting = 0;
        all->round++;
        pthread_cond_broadcast(&all->changed);
    }
    while (all->round == round && all->left == 0) {
        pthread_cond_wait(&all->changed, &all->lock);
    }
    bool complete = all->round != round;
    all->waiting -= complete ? 0 : 1;
    pthread_mutex_unlock(&all->lock);
    return complete ? CARRY_OK : CARRY_EPEER;
}

carry_status carry_ranks_run_told(carry_ctx *ctx, int size, carry_rank_function function, void *user, int *failed) {
    *failed = -1;
    if (size < 1 || size > CARRY_RANKS) {
        return carry_fail(ctx, CARRY_EARGUMENT, "%d ranks: give 1 to %d", size, CARRY_RANKS);
    }
    struct carry_ranks *all = calloc(1, sizeof *all + (size_t)size * sizeof(member));
    if (all == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: %d ranks", size);
    }
    all->size = size;
    all->function = function;
    all->user = user;
    pthread_mutex_init(&all->lock, NULL);
    pthread_cond_init(&all->changed, NULL);
    for (int i = 0; i < size; i++) {
        all->member[i].self = (carry_rank){.rank = i, .size = size, .all = all};
    }
    int code = 0;
    int started = start_all(all, &code);
    decide(all, started == size - 1);
    if (started == size - 1) {
        all->member[0].status = function(user, &all->member[0].self);
        leave(all, 0);
    }
    for (int i = 1; i <= started; i++) {
        pthread_join(all->member[i].thread, NULL);
    }
    *failed = worst_of(all);
    carry_status status = *failed >= 0 ? all->member[*failed].status : CARRY_OK;
    if (started < size - 1) {
        status = carry_fail(ctx, CARRY_EMEMORY, "rank %d of %d could not be started (%s)", started + 1, size,
                            strerror(code));
    }
    if (all->shared != NULL) {
        all->kind->free(all->shared);
    }
    pthread_cond_destroy(&all->changed);
    pthread_mutex_destroy(&all->lock);
    free(all);
    return status;
}

carry_status carry_ranks_run(carry_ctx *ctx, int size, carry_rank_function function, void *user) {
    int failed;
    return carry_ranks_run_told(ctx, size, function, user, &failed);
}
