/* The shortest useful program: plan a diagonal recurrence once, run it, say what ran.

   cc 01_scan.c $(pkg-config --cflags --libs carry) -o scan && ./scan */
#include <stdio.h>
#include <stdlib.h>

#include <carry/carry.h>

enum { BATCH = 2, STEPS = 100, N = 4, WIDTH = 8 };

static float a[BATCH * STEPS * N], b[BATCH * STEPS * N * WIDTH], h[BATCH * STEPS * N * WIDTH];

int main(void) {
    carry_ctx *ctx;
    carry_scan_plan *plan = NULL;
    const carry_scan_problem problem = {
        .kind = CARRY_SCAN_DIAGONAL, .batch = BATCH, .steps = STEPS, .n = N, .width = WIDTH};
    carry_tensor A = carry_view_3d(a, CARRY_F32, BATCH, STEPS, N);
    carry_tensor B = carry_view_4d(b, CARRY_F32, BATCH, STEPS, N, WIDTH);
    carry_tensor H = carry_view_4d(h, CARRY_F32, BATCH, STEPS, N, WIDTH);

    carry_status status = carry_ctx_new(&ctx, NULL);
    if (status == CARRY_OK) {
        status = carry_random_uniform(ctx, A, 1, 0, 0.8f, 1.0f);
    }
    if (status == CARRY_OK) {
        status = carry_random_normal(ctx, B, 1, 1, 0.0f, 0.1f);
    }
    if (status == CARRY_OK) {
        status = carry_scan_plan_new(ctx, &plan, &problem, NULL);
    }
    if (status == CARRY_OK) {
        size_t bytes = carry_scan_run_workspace(plan);
        void *workspace = malloc(bytes > 0 ? bytes : 1);
        status = carry_scan_run(plan, &(carry_scan_args){.h = H, .A = A, .b = B}, workspace, bytes);
        free(workspace);
    }
    if (status == CARRY_OK) {
        printf("%s\nlast state starts with %g\n", carry_scan_plan_about(plan), (double)h[(STEPS - 1) * N * WIDTH]);
    } else if (ctx != NULL) {
        fprintf(stderr, "%s\n", carry_ctx_error(ctx));
    }
    carry_scan_plan_free(plan);
    carry_ctx_free(ctx);
    return status == CARRY_OK ? 0 : 1;
}
