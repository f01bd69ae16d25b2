/* carry list WHAT. */
#include <string.h>

#include "cli/cli.h"
#include "core/nearest.h"
#include "bench/family/family.h"
#include "model/codec/codec.h"
#include "model/dit/dit.h"
#include "model/lm/families/family.h"
#include "ops/table.h"
#include "ops/product/bf16.h"
#include "ops/kernels/kernels.h"
#ifdef CARRY_HAVE_LAB
#include "lab/experiment/experiment.h"
#endif

#define WORDS                                                                                                        \
    "scans, deltas, collectives, kernels, devices, ops, problems, rates, experiments, codecs, configs, families or " \
    "verbs"

static void row(bool json, const char *what, const char *name, const char *about) {
    if (json) {
        cli_json_open();
        cli_json_text("kind", what);
        cli_json_text("name", name);
        cli_json_text("about", about);
        cli_json_close();
    } else {
        (void)printf("%-20s %s\n", name, about);
    }
}

static int list_scans(carry_ctx *ctx, bool json) {
    (void)ctx;
    for (int i = 0; carry_scan_name(0, i) != NULL; i++) {
        row(json, "scan", carry_scan_name(0, i), carry_scan_about(0, i));
    }
    return CLI_DONE;
}

static int list_deltas(carry_ctx *ctx, bool json) {
    (void)ctx;
    static const char *const device[] = {"cpu", "cuda"};
    for (int gpu = 0; gpu < 2; gpu++) {
        for (int i = 0; carry_delta_name(gpu, i) != NULL; i++) {
            if (json) {
                cli_json_open();
                cli_json_text("kind", "delta");
                cli_json_text("name", carry_delta_name(gpu, i));
                cli_json_text("about", carry_delta_about(gpu, i));
                cli_json_text("device", device[gpu]);
                cli_json_close();
            } else {
                (void)printf("%-20s %-5s %s\n", carry_delta_name(gpu, i), device[gpu], carry_delta_about(gpu, i));
            }
        }
    }
    return CLI_DONE;
}

/* Lists the kinds of communicators, and the algorithms of All-Scan over them. */
static int list_collectives(carry_ctx *ctx, bool json) {
    (void)ctx;
    for (int i = 0; carry_comm_kind_name(i) != NULL; i++) {
        row(json, "communicator", carry_comm_kind_name(i), carry_comm_kind_about(i));
    }
    for (int i = 0; carry_all_scan_name(i) != NULL; i++) {
        row(json, "all_scan", carry_all_scan_name(i), carry_all_scan_about(i));
    }
    return CLI_DONE;
}

static int list_kernels(carry_ctx *ctx, bool json) {
    for (int i = 0; carry_kernels_name(i) != NULL; i++) {
        char about[160];
        bool used = strcmp(carry_kernels_name(i), carry_ctx_kernels(ctx)) == 0;
        (void)snprintf(about, sizeof about, "%s%s", carry_kernels_about(i),
                       used                      ? " (used)"
                       : carry_kernels_usable(i) ? ""
                                                 : " (not on this processor)");
        row(json, "kernels", carry_kernels_name(i), about);
    }
    const carry_bf16 *bf16;
    for (int i = 0; (bf16 = carry_bf16_at(i)) != NULL; i++) {
        char bf16_about[256];
        const char *why = bf16->missing();
        bool used = bf16 == carry_bf16_of(ctx);
        (void)snprintf(bf16_about, sizeof bf16_about, "%s%s%s%s", bf16->about,
                       used          ? " (used)"
                       : why != NULL ? " (not on this machine: "
                                     : "",
                       why != NULL ? why : "", why != NULL ? ")" : "");
        row(json, "bf16", bf16->name, bf16_about);
    }
    const char *core = carry_blas_core();
    char about[256];
    char misfit[200];
    if (carry_blas_product != NULL) {
        bool warn = carry_blas_misfit(misfit, sizeof misfit, core, carry_ctx_kernels(ctx));
        (void)snprintf(about, sizeof about, "BLAS, core type %s%s%s", core != NULL ? core : "unknown",
                       warn ? "; warning: " : "", warn ? misfit : "");
        row(json, "blas", "openblas", about);
    }
    return CLI_DONE;
}

static void show_device(int device, const carry_device_properties *p, bool json) {
    if (!json) {
        char cache[48] = ""; /* stays empty where /sys does not state it */
        if (p->cache > 0) {
            (void)snprintf(cache, sizeof cache, ", last cache %.1f MiB", (double)p->cache / 1048576.0);
        }
        (void)printf("%d  %-5s %s: %d %s, %.1f GiB%s, %s", device, p->backend, p->name, p->units,
                     strcmp(p->backend, "cpu") == 0 ? "cores" : "multiprocessors", (double)p->memory / 1073741824.0,
                     cache, p->kernels);
        if (p->driver > 0) {
            (void)printf(", driver for CUDA %d.%d, built with %d.%d", p->driver / 1000, p->driver % 1000 / 10,
                         p->runtime / 1000, p->runtime % 1000 / 10);
        }
        (void)printf("\n");
        return;
    }
    cli_json_open();
    cli_json_text("kind", "device");
    cli_json_integer("device", device);
    cli_json_text("backend", p->backend);
    cli_json_text("name", p->name);
    cli_json_integer("units", p->units);
    cli_json_integer("memory", (int64_t)p->memory);
    cli_json_integer("cache", (int64_t)p->cache);
    cli_json_text("kernels", p->kernels);
    if (p->driver > 0) {
        cli_json_integer("driver", p->driver);
        cli_json_integer("runtime", p->runtime);
        cli_json_number("clock_hz", p->clock_hz);
        cli_json_number("memory_gbytes_s", 1e-9 * p->memory_bytes_s);
    }
    cli_json_close();
}

static int list_devices(carry_ctx *ctx, bool json) {
    const char *absence;
    for (int i = 0; i < carry_device_count(); i++) {
        carry_device_properties p = {CARRY_INIT(carry_device_properties)};
        if (carry_device_properties_of(ctx, &p, i) != CARRY_OK) {
            return cli_failed(ctx);
        }
        show_device(i, &p, json);
    }
    for (int i = 0; (absence = carry_device_absence(ctx, i)) != NULL; i++) {
        if (json) {
            cli_json_open();
            cli_json_text("kind", "absence");
            cli_json_text("reason", absence);
            cli_json_close();
        } else {
            (void)printf("-  %s\n", absence);
        }
    }
    return CLI_DONE;
}

/* Lists every operator with the kinds of devices that have it in this build, and the types of its activations there. */
static int list_ops(carry_ctx *ctx, bool json) {
    (void)ctx;
    const char *name;
    for (int i = 0; (name = carry_operator_name(i)) != NULL; i++) {
        char about[160] = "";
        size_t used = 0;
        const char *backend = NULL;
        const char *types = NULL;
        for (int b = 0; (types = carry_operator_types(i, b, &backend)) != NULL && used < sizeof about; b++) {
            used += (size_t)snprintf(about + used, sizeof about - used, "%s%s: %s", b > 0 ? "; " : "", backend,
                                     types[0] != '\0' ? types : "-");
        }
        row(json, "op", name, about);
    }
    return CLI_DONE;
}

/* As `row`, and the JSON also lists the devices, types and ranks on which it runs. */
static void supported_row(bool json, const char *what, const char *name, const char *about,
                          const carry_support *support) {
    if (!json) {
        row(false, what, name, about);
        return;
    }
    const struct {
        const char *key, *value;
    } columns[] = {{"cpu", support->cpu},
                   {"cuda", support->cuda},
                   {"cpu_backward", support->cpu_backward},
                   {"cuda_backward", support->cuda_backward},
                   {"ranks", support->ranks}};
    cli_json_open();
    cli_json_text("kind", what);
    cli_json_text("name", name);
    cli_json_text("about", about);
    for (size_t i = 0; i < sizeof columns / sizeof columns[0]; i++) {
        cli_json_text(columns[i].key, columns[i].value != NULL ? columns[i].value : "");
    }
    cli_json_close();
}

static int list_problems(carry_ctx *ctx, bool json) {
    (void)ctx;
    const carry_family *family;
    for (int i = 0; (family = carry_family_at(i)) != NULL; i++) {
        char about[512];
        (void)snprintf(about, sizeof about, "%s. Takes %s. Example: %s", family->about, family->takes, family->example);
        supported_row(json, "problem", family->name, about, &family->support);
    }
    return CLI_DONE;
}

static bool measure_again;

static int list_rates(carry_ctx *ctx, bool json) {
    if (carry_rates(ctx, measure_again) != CARRY_OK) {
        return cli_failed(ctx);
    }
    const char *line;
    for (int i = 0; (line = carry_rate_line(ctx, i)) != NULL; i++) {
        char copy[128];
        (void)snprintf(copy, sizeof copy, "%s", line);
        char *space = strchr(copy, ' ');
        *space = '\0';
        row(json, "rate", copy, space + 1);
    }
    return CLI_DONE;
}

#ifdef CARRY_HAVE_LAB
static void experiment_row(void *user, const char *name, const char *about, const char *path) {
    (void)path;
    row(*(const bool *)user, "experiment", name, about);
}

static int list_experiments(carry_ctx *ctx, bool json) {
    return carry_experiment_list(ctx, experiment_row, &json) == CARRY_OK ? CLI_DONE : cli_failed(ctx);
}
#else
static int list_experiments(carry_ctx *ctx, bool json) {
    (void)ctx;
    (void)json;
    return cli_refuse("this carry was built without the lab, which experiments need");
}
#endif

static int list_codecs(carry_ctx *ctx, bool json) {
    (void)ctx;
    const char *name;
    const char *about;
    for (int i = 0; (name = carry_codec_kind_name(i, &about)) != NULL; i++) {
        row(json, "codec", name, about);
    }
    return CLI_DONE;
}

static int list_configs(carry_ctx *ctx, bool json) {
    (void)ctx;
    const char *name;
    const char *about;
    for (int i = 0; (name = carry_dit_config_name(i, &about)) != NULL; i++) {
        row(json, "config", name, about);
    }
    return CLI_DONE;
}

/* Lists the families of language models with the parts of their layers and the devices they run on. The engine
   serves all of them. */
static int list_families(carry_ctx *ctx, bool json) {
    (void)ctx;
    const carry_lm_family *family;
    for (int i = 0; (family = carry_lm_family_at(i)) != NULL; i++) {
        const carry_lm_family_row parts = carry_lm_family_describe(family);
        const char *const devices = parts.on_cuda ? "cpu cuda" : "cpu";
        const char *const others = parts.feedforwards;
        if (!json) {
            (void)printf("%-20s %-24s %-18s %-9s %-9s %s\n", family->wrapper != NULL ? family->wrapper : family->name,
                         parts.mixers, others[0] != '\0' ? others : "-", devices, parts.trains ? "train" : "-",
                         family->about);
            continue;
        }
        cli_json_open();
        cli_json_text("kind", "family");
        cli_json_text("name", family->wrapper != NULL ? family->wrapper : family->name);
        cli_json_text("about", family->about);
        cli_json_text("model_type", family->name);
        cli_json_text("mixers", parts.mixers);
        cli_json_text("feedforwards", others);
        cli_json_text("run", devices);
        cli_json_text("train", parts.trains ? devices : "");
        cli_json_text("engine", devices);
        cli_json_close();
    }
    return CLI_DONE;
}

static int list_verbs(carry_ctx *ctx, bool json) {
    (void)ctx;
    for (int i = 0; cli_verbs[i] != NULL; i++) {
        for (const cli_verb *verb = cli_verbs[i]; verb != NULL; verb = verb->other) {
            supported_row(json, "verb", verb->name, verb->summary, &verb->support);
        }
    }
    return CLI_DONE;
}

static const struct {
    const char *what;
    int (*list)(carry_ctx *ctx, bool json);
} lists[] = {{"scans", list_scans},       {"deltas", list_deltas},   {"collectives", list_collectives},
             {"kernels", list_kernels},   {"devices", list_devices}, {"ops", list_ops},
             {"problems", list_problems}, {"rates", list_rates},     {"experiments", list_experiments},
             {"codecs", list_codecs},     {"configs", list_configs}, {"families", list_families},
             {"verbs", list_verbs}};

static int run(int count, char **arguments) {
    cli_common common = {0};
    const cli_option own[] = {
        {"again", 0, CLI_FLAG, &measure_again, NULL, "rates: measure them again instead of reading the wisdom file"},
        {0},
    };
    int words = cli_parse(&cli_list, count, arguments, own, &common);
    if (words < 0 || common.help) {
        return words < 0 ? CLI_IMPOSSIBLE : CLI_DONE;
    }
    if (words != 1) {
        return cli_refuse("list needs one word: " WORDS);
    }
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        if (strcmp(arguments[0], lists[i].what) == 0) {
            carry_ctx *ctx = cli_open(&common);
            int code = ctx != NULL ? lists[i].list(ctx, common.json) : CLI_IMPOSSIBLE;
            carry_ctx_free(ctx);
            return code;
        }
    }
    char hint[CARRY_NEAREST_HINT];
    carry_nearest near = carry_nearest_to(arguments[0]);
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        carry_nearest_offer(&near, lists[i].what);
    }
    (void)carry_nearest_hint(hint, &near, "");
    return cli_refuse("there is no list of '%.60s'%s " WORDS, arguments[0], hint[0] != '\0' ? hint : ": give");
}

const cli_verb cli_list = {
    .name = "list",
    .arguments = "WHAT",
    .summary = "list algorithms, devices, problems, experiments, verbs and more",
    .details =
        "WHAT is one of\n"
        "  scans        the algorithms for linear recurrences\n"
        "  deltas       the methods of the gated delta rule\n"
        "  collectives  the kinds of communicators, and the algorithms of the scan across ranks\n"
        "  kernels      the sets of CPU kernels, and which one is used\n"
        "  devices      where work can run\n"
        "  ops          the operators, with the devices and types of each\n"
        "  problems     the problem families, with the parameters that each accepts\n"
        "  rates        the measured rates of this machine that the planner uses\n"
        "  experiments  the experiments of this project, with their hypotheses\n"
        "  codecs       the codecs that convert pictures to latents and back\n"
        "  configs      the video transformers known by name\n"
        "  families     the families of language models: mixers, feed-forwards, devices, training, published models\n"
        "  verbs        the verbs of carry",
    .example = "carry list scans",
    .run = run,
};
