/* The operator that this thread is executing, for GPU profiles: a kernel launch is attributed to the name of the
   operator and to the source line that called carry_launching_set. The operator is set when it is entered and never
   reset, since nothing is launched between operators. */
#ifndef CARRY_CORE_LAUNCHING_H
#define CARRY_CORE_LAUNCHING_H

#ifdef __cplusplus
extern "C" {
#endif

typedef struct carry_launcher {
    const char *name, *place; /* literals; place is FILE:LINE */
} carry_launcher;

#define CARRY_PLACE_TEXT_(line) #line
#define CARRY_PLACE_AT_(line) __FILE__ ":" CARRY_PLACE_TEXT_(line)
#define CARRY_PLACE CARRY_PLACE_AT_(__LINE__)

void carry_launching_at(const char *name, const char *place);
#define carry_launching_set(name) carry_launching_at(name, CARRY_PLACE)
carry_launcher carry_launching(void); /* name is NULL before the first operator */

#ifdef __cplusplus
}
#endif
#endif
