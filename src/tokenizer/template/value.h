/* Values of a template, with Python's meaning, and their memory. A rendering allocates from one arena, which is freed
   as a whole at the end. An error returns to the entry point by longjmp: only the arena and the output buffer own
   memory, so the functions in between have nothing to clean up. */
#ifndef CARRY_TEMPLATE_VALUE_H
#define CARRY_TEMPLATE_VALUE_H

#include <setjmp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/error.h"

typedef struct jinja_block {
    struct jinja_block *before;
    size_t size, used;
} jinja_block;

typedef struct jinja_arena {
    jinja_block *last;
    size_t total, limit; /* bytes */
    jmp_buf *leave;      /* jumped to when memory runs out */
    const char *failure; /* the reason for the jump */
} jinja_arena;

/* Allocates zeroed memory. Never returns NULL: jumps to arena.leave when out of memory or over the limit. */
void *jinja_new(jinja_arena *arena, size_t count, size_t item);
void jinja_arena_free(jinja_arena *arena);

typedef enum jinja_kind {
    JINJA_MISSING, /* an argument that was not given */
    JINJA_UNDEFINED,
    JINJA_NONE,
    JINJA_BOOL,
    JINJA_INTEGER,
    JINJA_FLOAT,
    JINJA_STRING,
    JINJA_LIST,
    JINJA_TUPLE,
    JINJA_DICT,
    JINJA_RANGE,
    JINJA_VIEW,     /* keys, values or items of a dict */
    JINJA_ITERATOR, /* yields each item once */
    JINJA_NAMESPACE,
    JINJA_LOOP,
    JINJA_MACRO,
    JINJA_FUNCTION, /* a global function */
    JINJA_METHOD,   /* a method with its object */
    JINJA_CYCLER,
    JINJA_JOINER,
    JINJA_SELF /* the name `self` */
} jinja_kind;

typedef struct jinja_text { /* UTF-8 */
    const char *at;
    size_t length;
    int64_t points; /* code points; -1: not counted yet */
} jinja_text;

typedef struct jinja_value {
    jinja_kind kind;
    bool marked; /* a string: marked safe, as markupsafe.Markup. Undefined: an attribute that the sandbox hides */
    union {
        bool truth;
        int64_t integer;
        double number;
        jinja_text *text; /* undefined: the name, or NULL */
        struct jinja_list *list;
        struct jinja_dict *dict; /* also a namespace */
        struct jinja_range *range;
        struct jinja_view *view;
        struct jinja_iterator *iterator;
        struct jinja_loop *loop;
        struct jinja_macro *macro;
        const struct jinja_function *function;
        struct jinja_bound *method;
        struct jinja_cycler *cycler; /* also a joiner */
    } as;
} jinja_value;

typedef struct jinja_list { /* also a tuple */
    jinja_value *at;
    size_t count, room;
    bool is_group; /* a tuple made by groupby, with the attributes grouper and list */
} jinja_list;

typedef struct jinja_pair {
    jinja_value key, value;
    uint64_t hash;
} jinja_pair;

typedef struct jinja_dict { /* in order of insertion */
    jinja_pair *at;
    size_t count, room;
    uint32_t *slot; /* hash table of indices + 1; NULL while there are few pairs */
    size_t slots;
} jinja_dict;

typedef struct jinja_range {
    int64_t start, stop, step, count;
} jinja_range;

typedef enum jinja_part { JINJA_KEYS, JINJA_VALUES, JINJA_ITEMS } jinja_part;
typedef struct jinja_view {
    jinja_dict *dict;
    jinja_part part;
} jinja_view;

struct jinja_run;
typedef struct jinja_iterator {
    jinja_list *items; /* NULL: `fill` has not run yet */
    size_t next;
    void (*fill)(struct jinja_run *run, struct jinja_iterator *iterator);
    const struct jinja_function *filter; /* arguments of fill */
    jinja_value source;
    const struct jinja_arguments *arguments;
} jinja_iterator;

typedef struct jinja_cycler {
    jinja_list *items; /* joiner: the separator */
    size_t position;
} jinja_cycler;

static inline jinja_value jinja_none(void) {
    return (jinja_value){.kind = JINJA_NONE};
}
static inline jinja_value jinja_bool(bool truth) {
    return (jinja_value){.kind = JINJA_BOOL, .as.truth = truth};
}
static inline jinja_value jinja_integer(int64_t integer) {
    return (jinja_value){.kind = JINJA_INTEGER, .as.integer = integer};
}
static inline jinja_value jinja_float(double number) {
    return (jinja_value){.kind = JINJA_FLOAT, .as.number = number};
}
static inline jinja_value jinja_undefined(jinja_text *name) {
    return (jinja_value){.kind = JINJA_UNDEFINED, .as.text = name};
}
static inline jinja_value jinja_listed(jinja_kind kind, jinja_list *list) {
    return (jinja_value){.kind = kind, .as.list = list};
}
static inline bool jinja_is_number(jinja_value value) {
    return value.kind == JINJA_BOOL || value.kind == JINJA_INTEGER || value.kind == JINJA_FLOAT;
}
/* True for an integer, and for a bool, which Python treats as one. */
static inline bool jinja_is_whole(jinja_value value) {
    return value.kind == JINJA_BOOL || value.kind == JINJA_INTEGER;
}
static inline int64_t jinja_whole(jinja_value value) {
    return value.kind == JINJA_BOOL ? (int64_t)value.as.truth : value.as.integer;
}
static inline double jinja_number(jinja_value value) {
    return value.kind == JINJA_FLOAT ? value.as.number : (double)jinja_whole(value);
}

/* Copies the bytes. */
jinja_text *jinja_text_new(jinja_arena *arena, const char *bytes, size_t length);
/* Refers to bytes without copying them; they must live as long as the arena. */
jinja_text *jinja_text_over(jinja_arena *arena, const char *bytes, size_t length);
jinja_value jinja_string(jinja_arena *arena, const char *bytes, size_t length);
bool jinja_text_is(const jinja_text *text, const char *expected);
bool jinja_text_equal(const jinja_text *a, const jinja_text *b);
int64_t jinja_points(jinja_text *text); /* number of code points */

jinja_list *jinja_list_new(jinja_arena *arena, size_t room);
void jinja_list_add(jinja_arena *arena, jinja_list *list, jinja_value value);
jinja_value jinja_pair_of(jinja_arena *arena, jinja_value first, jinja_value second); /* makes a tuple */

jinja_dict *jinja_dict_new(jinja_arena *arena, size_t room);
/* Return NULL if the key is absent. Lookups with a text key cannot fail; for other keys see jinja_dict_key in run.h. */
jinja_value *jinja_dict_find(const jinja_dict *dict, jinja_value key, uint64_t hash);
jinja_value *jinja_dict_find_text(const jinja_dict *dict, const jinja_text *key);
void jinja_dict_put(jinja_arena *arena, jinja_dict *dict, jinja_value key, uint64_t hash, jinja_value value);
void jinja_dict_put_text(jinja_arena *arena, jinja_dict *dict, jinja_text *key, jinja_value value);
uint64_t jinja_hash_text(const jinja_text *text);
uint64_t jinja_hash_number(jinja_value value); /* equal numbers of any kind have the same hash */

/* Python's == for keys of dicts; both values must be hashable. */
bool jinja_keys_equal(jinja_value a, jinja_value b);

#endif
