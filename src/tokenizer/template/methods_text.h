/* Shared by the two files that implement string methods. */
#ifndef CARRY_TEMPLATE_METHODS_TEXT_H
#define CARRY_TEMPLATE_METHODS_TEXT_H

#include "tokenizer/template/run.h"

jinja_text *jinja_text_of(jinja_run *run, jinja_value value);                       /* fails for other kinds */
int64_t jinja_whole_of(jinja_run *run, jinja_value value, int64_t otherwise);       /* otherwise: if missing or none */
const char *jinja_find_last(const char *at, size_t length, const jinja_text *what); /* NULL if not found */
bool jinja_is_cased(uint32_t code);

extern const jinja_function jinja_search_methods[];
extern const size_t jinja_search_method_count;

#endif
