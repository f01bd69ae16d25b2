/* The groups of ranks: the world, and the mesh, to which rank 0 of a pipeline does not belong. */
#include "comm/rates.h"
#include "core/error.h"
#include "stream/pipeline.h"

static const char running[] =
    "the pipeline runs, and its stages must not wait for each other in a collective of the world: stage 0 and the "
    "leader send each other messages, the mesh has its own communicator";

carry_status carry_pipeline_split(carry_comm *world, carry_pipeline_groups *groups, bool with_stage) {
    const int rank = carry_comm_rank(world);
    *groups = (carry_pipeline_groups){.world = world, .with_stage = with_stage && carry_comm_size(world) > 1};
    return carry_comm_split(world, &groups->mesh, groups->with_stage && rank == 0 ? -1 : 0, rank);
}

void carry_pipeline_begin(carry_pipeline_groups *groups) {
    groups->is_running = true;
    /* If rank 0 is in the mesh too, the mesh has the same ranks as the world, but its own communicator: collectives
       of the world fail while the pipeline runs. */
    carry_comm_bar(groups->world, running);
}

void carry_pipeline_end(carry_pipeline_groups *groups) {
    if (groups->is_running) {
        carry_comm_bar(groups->world, NULL);
    }
    groups->is_running = false;
    carry_comm_close(groups->mesh);
    groups->mesh = NULL;
}

carry_status carry_pipeline_mesh(const carry_pipeline_groups *groups, carry_comm **mesh) {
    *mesh = groups->mesh;
    return groups->mesh != NULL ? CARRY_OK
                                : carry_fail(carry_comm_ctx(groups->world), CARRY_EARGUMENT,
                                             "rank %d of %d is stage 0 and has no part in a collective of the mesh",
                                             carry_comm_rank(groups->world), carry_comm_size(groups->world));
}

carry_status carry_pipeline_world(const carry_pipeline_groups *groups, carry_comm **world) {
    *world = groups->is_running ? NULL : groups->world;
    return !groups->is_running ? CARRY_OK
                               : carry_fail(carry_comm_ctx(groups->world), CARRY_EARGUMENT, "rank %d of %d: %s",
                                            carry_comm_rank(groups->world), carry_comm_size(groups->world), running);
}
