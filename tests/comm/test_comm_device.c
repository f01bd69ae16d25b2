/* Communicators that move memory of a device over another communicator, "peer" and "staged": the same collectives and
   messages as NCCL's, on 1 to 8 ranks that share the first GPU, or, without a GPU, on CPU memory, which takes the same
   path; order, sizes that differ, deadlines, a rank that leaves, refusals. */
/* labels: gpu */
#include "comm_buffers.h"

#include "comm/rates.h"
#include "core/clock.h"

typedef struct work {
    const char *kind;
    int device;
} work;

static int shared_device(void) {
    return carry_device_count() > 1 ? 1 : 0;
}

static carry_status open_on(carry_comm *comm, const work *w, double deadline, carry_comm **gpus) {
    return carry_comm_open(
        carry_comm_ctx(comm), gpus, w->kind,
        &(carry_comm_options){CARRY_INIT(carry_comm_options), .deadline = deadline, .device = w->device, .over = comm});
}

static carry_status all_of_it(void *user, carry_comm *comm) {
    const work *w = user;
    carry_comm *gpus;
    TRY(open_on(comm, w, 60, &gpus));
    EXPECT(comm, carry_comm_rank(gpus) == carry_comm_rank(comm) && carry_comm_size(gpus) == carry_comm_size(comm),
           "place");
    EXPECT(comm, carry_comm_host(gpus) == comm && carry_comm_device(gpus) == w->device, "what it is over");
    const carry_status status = check_all(gpus, w->device);
    carry_comm_close(gpus);
    return status;
}

static void run_both(int ranks, carry_status (*function)(void *, carry_comm *), carry_status expected,
                     const char *words) {
    static const char *const of_threads[] = {"peer", "staged"}, *const of_processes[] = {"ipc", "staged"};
    const char *const *kinds = is_under_mpi() ? of_processes : of_threads;
    if (is_under_mpi() && process_count() != ranks) {
        return;
    }
    for (int i = is_under_mpi() && shared_device() == 0; i < 2; i++) { /* CPU memory has no IPC */
        char sentence[512];
        work w = {.kind = kinds[i], .device = shared_device()};
        const carry_status status = run_ranks(
            ranks, &(carry_comm_options){CARRY_INIT(carry_comm_options), .deadline = 60}, function, &w, sentence);
        if (status != expected || (words != NULL && strstr(sentence, words) == NULL)) {
            fail_msg("%s, %d ranks: %d, %s", kinds[i], ranks, (int)status, sentence);
        }
    }
}

static void test_collectives_and_messages_match_plain_loops(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i += (size_t)support_cases(1, 2)) {
        run_both(sizes[i], all_of_it, CARRY_OK, NULL);
    }
}

/* Messages of one tag arrive in the order they were sent, whichever is waited for first. */
static carry_status in_order(void *user, carry_comm *comm) {
    enum { COUNT = 40 };
    const work *w = user;
    carry_ctx *ctx = carry_comm_ctx(comm);
    const int peer = 1 - carry_comm_rank(comm);
    carry_comm *gpus;
    carry_request send[COUNT], receive[COUNT];
    int64_t host[COUNT], *from, *to;
    TRY(open_on(comm, w, 60, &gpus));
    TRY(carry_device_alloc(ctx, (void **)&from, w->device, sizeof host));
    TRY(carry_device_alloc(ctx, (void **)&to, w->device, sizeof host));
    for (int i = 0; i < COUNT; i++) {
        host[i] = 1000 * carry_comm_rank(comm) + i;
    }
    TRY(carry_device_copy(ctx, from, w->device, host, 0, sizeof host, NULL));
    for (int i = 0; i < COUNT; i++) {
        TRY(carry_irecv(gpus, &receive[i], to + i, sizeof *to, peer, 7));
        TRY(carry_isend(gpus, &send[i], from + i, sizeof *from, peer, 7));
    }
    for (int i = COUNT - 1; i >= 0; i--) {
        TRY(carry_wait(&receive[i]));
        TRY(carry_wait(&send[(i + COUNT / 2) % COUNT]));
    }
    TRY(carry_device_copy(ctx, host, 0, to, w->device, sizeof host, NULL));
    for (int i = 0; i < COUNT; i++) {
        EXPECT(comm, host[i] == 1000 * peer + i, "message %d", i);
    }
    carry_device_free(ctx, w->device, from);
    carry_device_free(ctx, w->device, to);
    carry_comm_close(gpus);
    return CARRY_OK;
}

static void test_messages_arrive_in_order(void **state) {
    (void)state;
    run_both(2, in_order, CARRY_OK, NULL);
}

typedef carry_status (*talk)(carry_comm *gpus, void *data, int rank);

static carry_status with_buffer(carry_comm *comm, const work *w, double deadline, talk function) {
    carry_ctx *ctx = carry_comm_ctx(comm);
    carry_comm *gpus;
    void *data;
    TRY(open_on(comm, w, deadline, &gpus));
    TRY(carry_device_alloc(ctx, &data, w->device, 64));
    const carry_status status = function(gpus, data, carry_comm_rank(comm));
    carry_comm_close(gpus);
    carry_device_free(ctx, w->device, data);
    return status;
}

static carry_status differing_sizes(carry_comm *gpus, void *data, int rank) {
    return rank == 0 ? carry_send(gpus, data, 64, 1, 0) : carry_recv(gpus, data, 32, 0, 0);
}

static carry_status misfit(void *user, carry_comm *comm) {
    return with_buffer(comm, user, 60, differing_sizes);
}

static carry_status nobody_sends(carry_comm *gpus, void *data, int rank) {
    return rank == 0 ? carry_recv(gpus, data, 64, 1, 0) : carry_barrier(gpus);
}

static carry_status late(void *user, carry_comm *comm) {
    return with_buffer(comm, user, 0.3, nobody_sends);
}

static carry_status one_leaves(carry_comm *gpus, void *data, int rank) {
    return rank == 1 ? CARRY_EFORMAT : carry_recv(gpus, data, 64, 1, 0);
}

static carry_status leaver(void *user, carry_comm *comm) {
    return with_buffer(comm, user, 60, one_leaves);
}

static void test_failures_end_all_ranks_with_their_reason(void **state) {
    (void)state;
    if (is_under_mpi()) { /* kill_ranks.sh is for processes */
        skip();
    }
    run_both(2, misfit, CARRY_ESHAPE, "bytes where rank");
    run_both(2, late, CARRY_ETIMEOUT, "the deadline");
    run_both(2, leaver, CARRY_EFORMAT, NULL);
    run_both(3, leaver, CARRY_EFORMAT, NULL);
}

/* Rank 1 asks for more memory than there is. */
static carry_status one_wants_too_much(carry_comm *gpus, void *data, int rank) {
    void *more;
    return rank == 1 ? carry_device_alloc(carry_comm_ctx(gpus), &more, carry_comm_device(gpus), (size_t)1 << 50)
                     : carry_recv(gpus, data, 64, 1, 0);
}

static carry_status greedy(void *user, carry_comm *comm) {
    return with_buffer(comm, user, 60, one_wants_too_much);
}

static carry_status by_nccl(void *user, carry_comm *comm) {
    const work *w = user;
    carry_comm *gpus;
    return carry_comm_open_device(comm, &gpus, w->device, "nccl");
}

/* Rank 0 uses the CPU as its device. */
static carry_status on_another(void *user, carry_comm *comm) {
    const work *w = user;
    carry_comm *gpus;
    const carry_comm_options options = {CARRY_INIT(carry_comm_options),
                                        .device = carry_comm_rank(comm) > 0 ? w->device : 0, .over = comm};
    return carry_comm_open(carry_comm_ctx(comm), &gpus, w->kind, &options);
}

static void test_ranks_that_do_not_fit_a_gpu_are_refused(void **state) {
    (void)state;
    if (is_under_mpi()) {
        skip();
    }
    run_both(2, by_nccl, CARRY_EUNSUPPORTED, "some of 2 ranks share one: use \"peer\"");
    if (shared_device() > 0) {
        run_both(2, on_another, CARRY_EARGUMENT, "the ranks differ: rank 0 has a");
        run_both(2, greedy, CARRY_EMEMORY, "bytes asked for");
    }
}

/* This test comes first: exported memory stays exported. */
static carry_status by_what_fits(void *user, carry_comm *comm) {
    const bool *without = user;
    carry_comm *gpus;
    TRY(carry_comm_open_device(comm, &gpus, shared_device(), NULL));
    const char *wanted = *without ? "staged" : "ipc";
    EXPECT(comm, strcmp(carry_comm_name(gpus), wanted) == 0, "%s", carry_comm_name(gpus));
    carry_comm_close(gpus);
    return CARRY_OK;
}

static void test_processes_without_ipc_go_through_pinned_memory(void **state) {
    (void)state;
    char sentence[512];
    if (!is_under_mpi() || shared_device() == 0) {
        skip();
    }
    for (int i = most <= 1025 ? 0 : 1; i < 2; i++) { /* the emulated GPU can be run without IPC */
        bool without = i == 0;
        (void)(without ? setenv("CARRY_EMULATE_NO_IPC", "1", 1) : unsetenv("CARRY_EMULATE_NO_IPC"));
        if (run_ranks(1, &world, by_what_fits, &without, sentence) != CARRY_OK) {
            fail_msg("%s", sentence);
        }
    }
}

/* The error message of each rank. A rank that returned its error would end the other ranks before they have theirs. */
typedef struct asked {
    bool aware;
    char told[16][512];
} asked;

/* Declares MPI to be CUDA-aware (CARRY_MPI_CUDA). Without a GPU the memory is the CPU's, which every MPI accepts. */
static carry_status by_mpi(void *user, carry_comm *comm) {
    const work w = {.kind = "mpi-gpu", .device = shared_device()};
    asked *a = user;
    const int rank = carry_comm_rank(comm);
    carry_comm *gpus;
    (void)setenv("CARRY_MPI_CUDA", a->aware ? "1" : "0", 1);
    carry_status status = a->aware ? all_of_it((void *)(uintptr_t)&w, comm) : open_on(comm, &w, 60, &gpus);
    (void)unsetenv("CARRY_MPI_CUDA");
    if (status == CARRY_EUNSUPPORTED && !a->aware && rank < 16) {
        (void)snprintf(a->told[rank], sizeof a->told[rank], "%s", carry_ctx_error(carry_comm_ctx(comm)));
        status = CARRY_OK;
    }
    return status;
}

static void test_an_mpi_that_takes_no_gpus_is_named(void **state) {
    (void)state;
    char sentence[512];
    asked a = {.aware = false};
    const bool is_mpi = is_under_mpi() && getenv("CARRY_MEET") == NULL;
    assert_int_equal(run_ranks(2, &world, by_mpi, &a, sentence), CARRY_OK);
    int refused = 0;
    for (int rank = 0; rank < 16; rank++) {
        refused += a.told[rank][0] != '\0';
        if (a.told[rank][0] != '\0' &&
            strstr(a.told[rank], is_mpi ? "CUDA-aware), and " : "is opened over \"mpi\", not over") == NULL) {
            fail_msg("%s", a.told[rank]);
        }
    }
    assert_true(refused > 0);
    a.aware = true;
    if (is_mpi && shared_device() == 0 && run_ranks(2, &world, by_mpi, &a, sentence) != CARRY_OK) {
        fail_msg("%s", sentence);
    }
}

static void test_what_cannot_be_is_refused(void **state) {
    (void)state;
    if (is_under_mpi()) {
        skip();
    }
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_comm *self, *gpu, *part, *other;
    const int device = shared_device();
    assert_ok(ctx, carry_comm_open(ctx, &self, "self", NULL));
    assert_refused(
        ctx, CARRY_EARGUMENT, "options->over is missing",
        carry_comm_open(ctx, &gpu, "peer", &(carry_comm_options){CARRY_INIT(carry_comm_options), .device = device}));
    assert_int_not_equal(carry_comm_open(ctx, &gpu, "staged",
                                         &(carry_comm_options){CARRY_INIT(carry_comm_options), .deadline = 5,
                                                               .device = 99, .over = self}),
                         CARRY_OK);
    assert_non_null(strstr(carry_ctx_error(ctx), "99"));
    assert_refused(
        ctx, CARRY_EUNSUPPORTED, "not for \"self\": use \"peer\"",
        carry_comm_open(ctx, &gpu, "ipc",
                        &(carry_comm_options){CARRY_INIT(carry_comm_options), .device = device, .over = self}));
    assert_refused(ctx, CARRY_EUNSUPPORTED, "CARRY_MEET", carry_comm_open(ctx, &gpu, "processes", NULL));
    assert_ok(ctx,
              carry_comm_open(ctx, &gpu, "peer",
                              &(carry_comm_options){CARRY_INIT(carry_comm_options), .device = device, .over = self}));
    assert_refused(ctx, CARRY_EUNSUPPORTED, "split", carry_comm_split(gpu, &part, 0, 0));
    assert_refused(
        ctx, CARRY_EARGUMENT, "host memory",
        carry_comm_open(ctx, &other, "staged",
                        &(carry_comm_options){CARRY_INIT(carry_comm_options), .device = device, .over = gpu}));
    assert_ok(ctx, carry_barrier(gpu));
    carry_comm_close(gpu);
    assert_ok(ctx, carry_comm_open_device(self, &gpu, device, NULL));
    assert_string_equal(carry_comm_name(gpu), "peer");
    carry_comm_close(gpu);
    carry_comm_close(self);
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_processes_without_ipc_go_through_pinned_memory),
        cmocka_unit_test(test_collectives_and_messages_match_plain_loops),
        cmocka_unit_test(test_messages_arrive_in_order),
        cmocka_unit_test(test_failures_end_all_ranks_with_their_reason),
        cmocka_unit_test(test_ranks_that_do_not_fit_a_gpu_are_refused),
        cmocka_unit_test(test_an_mpi_that_takes_no_gpus_is_named),
        cmocka_unit_test(test_what_cannot_be_is_refused),
    };
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_device_properties properties = {CARRY_INIT(carry_device_properties)};
    take_filter();
    if (carry_device_properties_of(ctx, &properties, shared_device()) == CARRY_OK &&
        strstr(properties.name, "emul") != NULL) {
        most = 1025; /* it is slow */
    }
    carry_ctx_free(ctx);
    print_message("memory of %s\n", shared_device() > 0 ? "a GPU that all ranks share" : "the CPU: there is no GPU");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
