/* The operator that this thread is in, for profiles of GPUs: what it launches is told by its name. Set where operators
   are entered, never reset: what follows an operator's last launch launches nothing. */
#ifndef CARRY_CORE_LAUNCHING_H
#define CARRY_CORE_LAUNCHING_H

#ifdef __cplusplus
extern "C" {
#endif

/* name is a literal. */
void carry_launching_set(const char *name);
const char *carry_launching(void); /* NULL: none yet */

#ifdef __cplusplus
}
#endif
#endif
