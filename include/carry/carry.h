/* Carry: sequence models whose state is carried along the sequence. This header includes all the others, in the order
   in which to read them. */
#ifndef CARRY_H
#define CARRY_H

#include "carry/status.h"
#include "carry/context.h"
#include "carry/tensor.h"
#include "carry/device.h"
#include "carry/comm.h"
#include "carry/ops.h"
#include "carry/nn.h"
#include "carry/scan.h"
#include "carry/all_scan.h"
#include "carry/delta.h"
#include "carry/delta_ranks.h"
#include "carry/attention.h"
#include "carry/tokenizer.h"
#include "carry/model.h"
#include "carry/chat.h"
#include "carry/engine.h"
#include "carry/problem.h"

#endif
