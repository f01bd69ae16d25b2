/* The only list of the algorithms of All-Scan. If two have the same cost, the planner takes the first. */
#include <string.h>

#include "scan/all_scan/all_scan.h"

extern const carry_all_scan_algorithm carry_all_scan_chain, carry_all_scan_doubling, carry_all_scan_gather,
    carry_all_scan_heads, carry_all_scan_serial;

static const carry_all_scan_algorithm *const table[] = {
    &carry_all_scan_chain, &carry_all_scan_doubling, &carry_all_scan_gather,
    &carry_all_scan_heads, &carry_all_scan_serial,
};

static const struct { const char *name, *meant; } other_names[] = {{"lasp2", "gather"}, {"lasp1", "serial"}};

const carry_all_scan_algorithm *carry_all_scan_at(int index) {
    return index < 0 || index >= (int)(sizeof table / sizeof table[0]) ? NULL : table[index];
}

const carry_all_scan_algorithm *carry_all_scan_find(const char *name) {
    for (size_t i = 0; i < sizeof other_names / sizeof other_names[0]; i++) {
        name = strcmp(name, other_names[i].name) == 0 ? other_names[i].meant : name;
    }
    const carry_all_scan_algorithm *found;
    for (int i = 0; (found = carry_all_scan_at(i)) != NULL; i++) {
        if (strcmp(found->name, name) == 0) {
            return found;
        }
    }
    return NULL;
}

const char *carry_all_scan_name(int index) {
    const carry_all_scan_algorithm *algorithm = carry_all_scan_at(index);
    return algorithm != NULL ? algorithm->name : NULL;
}

const char *carry_all_scan_about(int index) {
    const carry_all_scan_algorithm *algorithm = carry_all_scan_at(index);
    return algorithm != NULL ? algorithm->about : NULL;
}
