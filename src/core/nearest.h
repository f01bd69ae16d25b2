/* The known name that is nearest to an unknown word, for error messages.

       carry_nearest near = carry_nearest_to("bnch");
       for (...) carry_nearest_offer(&near, name);
       carry_fail(..., "there is no verb 'bnch'%s", carry_nearest_hint(hint, &near, ""));

   Other projects' names for the same thing (fp16, --lr) are in a table, which has priority over spelling. */
#ifndef CARRY_CORE_NEAREST_H
#define CARRY_CORE_NEAREST_H

#include <stddef.h>

#define CARRY_NEAREST_WORD 48
#define CARRY_NEAREST_HINT 80

typedef struct carry_nearest {
    const char *word;              /* borrowed */
    char best[CARRY_NEAREST_WORD]; /* "": none is near */
    int distance;
} carry_nearest;

carry_nearest carry_nearest_to(const char *word);
void carry_nearest_offer(carry_nearest *nearest, const char *name);
/* The same for a name of `length` bytes. */
void carry_nearest_offer_part(carry_nearest *nearest, const char *name, size_t length);
/* Returns "; did you mean 'NAME'?", with the prefix before the name, or "" if no name is near. */
const char *carry_nearest_hint(char hint[CARRY_NEAREST_HINT], const carry_nearest *nearest, const char *prefix);

/* Returns the hint for a word that should be one of names, a list that ends with NULL. */
const char *carry_nearest_among(char hint[CARRY_NEAREST_HINT], const char *word, const char *const *names);

/* The smallest number of insertions, deletions, replacements and swaps of adjacent letters that turn one word into the
   other; INT_MAX if either has CARRY_NEAREST_WORD letters or more. */
int carry_edit_distance(const char *a, const char *b);

#endif
