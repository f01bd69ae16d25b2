/* The options of a training, stored in the run as a file for carry train --config. */
#include <string.h>

#include "lab/report/html.h"
#include "lab/report/report_parts.h"
#include "lab/yaml.h"

void carry_report_hyperparameters(carry_page *page, const carry_run *run) {
    carry_yaml *root = NULL;
    if (strcmp(run->kind, CARRY_REPORT_TRAIN) != 0 || run->spec[0] == '\0' ||
        carry_yaml_parse(page->ctx, &root, run->spec, strlen(run->spec), "the options") != CARRY_OK) {
        return;
    }
    if (root->kind == CARRY_YAML_MAPPING) {
        carry_report_heading(page, "Hyperparameters");
        carry_html_raw(page->to, "<dl>\n");
        for (const carry_yaml *node = root->first; node != NULL; node = node->next) {
            if (node->kind == CARRY_YAML_SCALAR && node->text != NULL) {
                carry_html_around(page->to, "<dt>", node->key, "</dt>");
                carry_html_around(page->to, "<dd>", node->text, "</dd>\n");
            }
        }
        carry_html_raw(page->to, "</dl>\n");
    }
    carry_yaml_free(root);
}
