/* A call of a pass that is repeated with the same arguments, while the data behind them changes.

   On a GPU the first call is launched kernel by kernel, which sets up libraries and plans; the second is recorded as a
   graph, and replayed from then on with the same bits. Calls that cannot be recorded are launched every time: on the
   CPU, on a context without a stream (the default stream cannot be recorded), and with a state where the model has
   attention, whose number of keys grows from call to call. ids and labels are on the model's device. */
#ifndef CARRY_MODEL_LM_REPEAT_H
#define CARRY_MODEL_LM_REPEAT_H

#include "carry/device.h"
#include "model/lm/lm.h"

typedef struct carry_lm_repeat {
    bool off;           /* set by the caller, or once a recording has failed: every call is launched */
    bool has_run;       /* launched once, so that everything is set up */
    carry_graph *graph; /* NULL: not recorded yet */
} carry_lm_repeat;

/* carry_lm_run, by the recording where there is one. The arguments, the pass and the memory must be those of the calls
   before; carry_lm_repeat_end before any of them changes. */
carry_status carry_lm_repeat_run(carry_lm_repeat *repeat, carry_lm_pass *pass, const carry_lm_args *args, void *memory,
                                 size_t bytes);
/* Waits for the work and frees the recording. `off` stays. */
void carry_lm_repeat_end(carry_lm_repeat *repeat, carry_lm *lm);

#endif
