/* A page as JSON: the keys of its front matter, and its text. */
#include <jansson.h>

#include "lab/cards/cards.h"
#include "lab/cards/cards_field.h"

/* Not valid UTF-8: null, which is what JSON has for it. */
static json_t *text_of(const char *text) {
    json_t *made = text != NULL ? json_string(text) : NULL;
    return made != NULL ? made : json_null();
}

static json_t *list_of(const carry_field *field, const carry_page_list *list) {
    json_t *array = json_array();
    for (int i = 0; i < list->count; i++) {
        if (field->parts[0] == NULL) {
            (void)json_array_append_new(array, text_of(list->item[i].part[0]));
            continue;
        }
        json_t *entry = json_object();
        for (int part = 0; part < CARRY_ITEM_PARTS && field->parts[part] != NULL; part++) {
            (void)json_object_set_new(entry, field->parts[part], text_of(list->item[i].part[part]));
        }
        (void)json_array_append_new(array, entry);
    }
    return array;
}

char *carry_page_json(const carry_page *page) {
    json_t *object = json_object();
    (void)json_object_set_new(object, "kind", json_string(carry_page_kind_name(page->kind)));
    (void)json_object_set_new(object, "path", text_of(page->path));
    for (const carry_field *field = carry_fields(page->kind); field->key != NULL; field++) {
        json_t *value =
            field->is_list ? list_of(field, carry_field_list(page, field)) : text_of(carry_field_text(page, field));
        (void)json_object_set_new(object, field->key, value);
    }
    (void)json_object_set_new(object, "text", text_of(page->body));
    char *line = json_dumps(object, JSON_COMPACT);
    json_decref(object);
    return line;
}
