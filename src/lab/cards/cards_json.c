/* A page as JSON: the keys of its front matter, and its text. */
#include "lab/cards/cards.h"
#include "lab/cards/cards_field.h"
#include "core/json_write.h"

/* Text that is not valid UTF-8 is written as null. */
static void add_text(carry_json_text *to, const char *key, const char *text) {
    carry_json_add_text(to, key, text != NULL && carry_json_is_utf8(text) ? text : NULL);
}

static void add_list(carry_json_text *to, const carry_field *field, const carry_page_list *list) {
    carry_json_begin(to, field->key, '[');
    for (int i = 0; i < list->count; i++) {
        if (field->parts[0] == NULL) {
            add_text(to, NULL, list->item[i].part[0]);
            continue;
        }
        carry_json_begin(to, NULL, '{');
        for (int part = 0; part < CARRY_ITEM_PARTS && field->parts[part] != NULL; part++) {
            add_text(to, field->parts[part], list->item[i].part[part]);
        }
        carry_json_end(to, '}');
    }
    carry_json_end(to, ']');
}

char *carry_page_json(const carry_page *page) {
    carry_json_text text = {0};
    carry_json_begin(&text, NULL, '{');
    carry_json_add_text(&text, "kind", carry_page_kind_name(page->kind));
    add_text(&text, "path", page->path);
    for (const carry_field *field = carry_fields(page->kind); field->key != NULL; field++) {
        if (field->is_list) {
            add_list(&text, field, carry_field_list(page, field));
        } else {
            add_text(&text, field->key, carry_field_text(page, field));
        }
    }
    add_text(&text, "text", page->body);
    carry_json_end(&text, '}');
    return carry_json_text_take(&text);
}
