/* Shared by the reader (climb_log.c) and the writer (climb_entry.c) of the climb log: the lists of fields. */
#ifndef CARRY_LAB_CLIMB_FIELDS_H
#define CARRY_LAB_CLIMB_FIELDS_H

#include "lab/climb/climb_log.h"

typedef struct carry_climb_field_at {
    const char *name;
    size_t offset; /* of the field, a const char * */
    bool code;     /* written between backticks */
} carry_climb_field_at;

/* Both lists end with a NULL name. The entry's last field is the checksum. */
extern const carry_climb_field_at carry_climb_head_fields[], carry_climb_entry_fields[];

extern const char carry_climb_preface[]; /* the text before the head's fields */

static inline const char **carry_climb_at(void *record, const carry_climb_field_at *field) {
    return (const char **)(void *)((char *)record + field->offset);
}

#endif
