/* Parts of reading a state's file, declared for fuzzing. */
#ifndef CARRY_MODEL_LM_STATE_FILE_H
#define CARRY_MODEL_LM_STATE_FILE_H

#include "file/state_file.h"
#include "model/lm/lm_pass.h"

/* Reads a sequence from an open, verified file. A file of another model, or one without a part that this model needs,
   is refused before the state is changed; if the device fails later, the sequence is left empty. */
carry_status carry_lm_state_take(carry_lm_state *state, int64_t sequence, const carry_state_file *file,
                                 const char *path);

#endif
