/* A video stream on several GPUs that this machine does not have: streamcluster:gpus4. The time of a chunk is
   predicted from that of one block on one GPU and the rate of the links. The time of a run is the predicted period
   of a chunk, and its tokens are frames, so that tokens_per_s is frames/s. There are no results to compare.

       mesh     every block is split over all GPUs (tensor parallel): two large all-reduces and a small one per block.
                Ring all-reduce: each rank sends and receives 2 (g-1)/g of the tensor, at `link` GB/s (measured with
                g = 2).
       stages   each GPU has some of the blocks, and denoising steps of several chunks run at once (a stream batch):
                the stage with the most blocks sets the period; an activation is passed on once per forward.

   block: microseconds of a block on one GPU. host: microseconds of its launches, which the mesh does not split. serial:
   microseconds per chunk that neither method splits (decoding and similar work on the same GPU). The defaults are
   those of 14B at 576 x 320 in docs/results/stream-gpu.md, and the all-reduce of docs/results/stream-cluster.md. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/clock.h"
#include "core/context.h"
#include "bench/family/family.h"

#define MOST_GPUS 1024

typedef struct instance {
    carry_instance base;
    int64_t gpus, blocks, forwards, frames, rows, width;
    double block, host, serial, link, latency; /* seconds; link: bytes per second */
    const char *method;
    double seconds;
    char about[200];
} instance;

static const char takes[] =
    "gpus, blocks, forwards (of a chunk), frames (of a chunk), rows (tokens), width, block, host "
    "and serial (us), link (GB/s), latency (ns), algo=mesh or stages";

static const char *const methods[] = {"mesh", "stages"};
#define METHODS ((int)(sizeof methods / sizeof methods[0]))

static const char *method_at(int index) {
    return index >= 0 && index < METHODS ? methods[index] : NULL;
}

static carry_status parse(void *given, carry_problem *problem) {
    instance *it = given;
    const char *algo = carry_problem_setting(problem, "algo");
    it->gpus = carry_problem_size(problem, "gpus", 1);
    it->blocks = carry_problem_size(problem, "blocks", 40);
    it->forwards = carry_problem_size(problem, "forwards", 5);
    it->frames = carry_problem_size(problem, "frames", 12);
    it->rows = carry_problem_size(problem, "rows", 2160);
    it->width = carry_problem_size(problem, "width", 5120);
    it->block = 1e-6 * (double)carry_problem_size(problem, "block", 2195);
    it->host = 1e-6 * (double)carry_problem_size(problem, "host", 0);
    it->serial = 1e-6 * (double)carry_problem_size(problem, "serial", 0);
    it->link = 1e9 * (double)carry_problem_size(problem, "link", 195);
    it->latency = 1e-9 * (double)carry_problem_size(problem, "latency", 5000);
    (void)snprintf(it->base.only, sizeof it->base.only, "%s", algo != NULL ? algo : "");
    CARRY_TRY(carry_problem_finish(it->base.ctx, problem, takes));
    if (it->gpus > MOST_GPUS || it->gpus > it->blocks) {
        return carry_fail(it->base.ctx, CARRY_ESIZE, "'%s': expected 1 to %d GPUs, and no more than blocks (%lld)",
                          problem->text, MOST_GPUS, (long long)it->blocks);
    }
    return CARRY_OK;
}

/* Bytes of one activation, [rows, width] in bf16. */
static double activation(const instance *it) {
    return 2.0 * (double)it->rows * (double)it->width;
}

static double mesh_seconds(const instance *it) {
    const double g = (double)it->gpus;
    const double travels = activation(it) * 2.0 * (g - 1.0) / g; /* bytes sent in a ring */
    const double reduced = it->gpus == 1 ? 0.0 : 2.0 * (travels / it->link + it->latency) + it->latency;
    return (double)(it->forwards * it->blocks) * (it->block / g + it->host + reduced) + it->serial;
}

static double stages_seconds(const instance *it) {
    const int64_t most = (it->blocks + it->gpus - 1) / it->gpus;
    const double handed = it->gpus == 1 ? 0.0 : activation(it) / it->link + it->latency;
    return (double)it->forwards * ((double)most * (it->block + it->host) + handed) + it->serial;
}

static carry_status choose(void *given, const char *method) {
    instance *it = given;
    char time[32];
    const double seconds[] = {mesh_seconds(it), stages_seconds(it)};
    int chosen = seconds[1] < seconds[0] ? 1 : 0;
    for (int i = 0; method != NULL && i <= METHODS; i++) {
        if (i == METHODS) {
            return carry_fail(it->base.ctx, CARRY_ENOTFOUND, "there is no method '%.40s': expected mesh or stages",
                              method);
        }
        if (strcmp(method, methods[i]) == 0) {
            chosen = i;
            break;
        }
    }
    it->method = methods[chosen];
    it->seconds = seconds[chosen];
    (void)snprintf(it->about, sizeof it->about, "%s over %lld GPUs: %s a chunk, %.2f frames/s predicted", it->method,
                   (long long)it->gpus, carry_time_text(time, it->seconds), (double)it->frames / it->seconds);
    return CARRY_OK;
}

static double bytes(const void *given) {
    return activation(given);
}

static const char *chosen_method(const void *given) {
    return ((const instance *)given)->method;
}

static const char *about_plan(const void *given) {
    return ((const instance *)given)->about;
}

static carry_status run(void *given) {
    (void)given;
    return CARRY_OK;
}

static carry_status time_run(void *given, double *seconds) {
    *seconds = ((const instance *)given)->seconds;
    return CARRY_OK;
}

static carry_counts counts(const void *given) {
    const instance *it = given;
    return (carry_counts){.bytes = activation(it), .tokens = (double)it->frames, .predicted = it->seconds};
}

static carry_status compare(void *given, carry_deviation deviations[CARRY_DEVIATIONS], int *count) {
    *count = 0;
    deviations[0] = (carry_deviation){0};
    return carry_fail(((const instance *)given)->base.ctx, CARRY_EUNSUPPORTED,
                      "nothing is computed on simulated GPUs: bench --unchecked");
}

const carry_family carry_family_streamcluster = {
    .name = "streamcluster",
    .about = "a prediction of a video stream's frames/s over several GPUs, from a block's time and the links",
    .takes = takes,
    .example = "streamcluster:gpus4",
    .support = {.cpu = "bf16"},
    .is_simulated = true,
    .instance_bytes = sizeof(instance),
    .parse = parse,
    .bytes = bytes,
    .method = method_at,
    .choose = choose,
    .chosen = chosen_method,
    .about_plan = about_plan,
    .only = carry_instance_only,
    .run = run,
    .time = time_run,
    .counts = counts,
    .compare = compare,
};
