/* The parts of reading a state's file, for fuzzing. */
#ifndef CARRY_MODEL_LM_STATE_FILE_H
#define CARRY_MODEL_LM_STATE_FILE_H

#include "file/state_file.h"
#include "model/lm/lm_pass.h"

/* A sequence from a file that is open and verified. Refused before the state is changed if the file is of another model
   or lacks what this one needs; if the device fails afterwards, the sequence is empty. */
carry_status carry_lm_state_take(carry_lm_state *state, int64_t sequence, const carry_state_file *file,
                                 const char *path);

#endif
