#include "launch/report.h"

#include "data/file.h"
#include "launch/command_line.h"
#include "launch/report_page.h"

#include <stdlib.h>
#include <string.h>

static tt_status write_page(const tt_report_run *runs, int count, const char *path, tt_error *error)
{
    tt_file_output *output;
    TT_TRY(tt_file_create(path, &output, error));
    tt_status status = tt_report_put_page(tt_file_stream(output), runs, count, error);
    if (status != TT_OK) {
        tt_file_abandon(&output);
        return status;
    }
    return tt_file_commit(&output, error);
}

/* The page goes into the run's folder where there is but one and no other place was named. */
static tt_status default_output(const tt_report_run *runs, int count, char path[TT_REPORT_PATH],
                                tt_error *error)
{
    if (count > 1) {
        snprintf(path, TT_REPORT_PATH, "report.html");
    } else if (snprintf(path, TT_REPORT_PATH, "%s/report.html", runs[0].path) >= TT_REPORT_PATH) {
        return tt_error_set(error, TT_INVALID_INPUT, "%.200s: the path is too long", runs[0].path);
    }
    return TT_OK;
}

static tt_status report(char **folders, int count, tt_report_run *runs, const char *output,
                        char path[TT_REPORT_PATH], tt_error *error)
{
    for (int i = 0; i < count; i++) {
        TT_TRY(tt_report_read(folders[i], &runs[i], error));
    }
    if (output == NULL) {
        TT_TRY(default_output(runs, count, path, error));
    } else if (snprintf(path, TT_REPORT_PATH, "%s", output) >= TT_REPORT_PATH) {
        return tt_error_set(error, TT_INVALID_INPUT, "%.200s: the path is too long", output);
    }
    return write_page(runs, count, path, error);
}

int tt_report_main(int argc, char **argv)
{
    const char *output = NULL;
    const tt_option options[] = {
        {.name = "output",
         .kind = TT_OPTION_TEXT,
         .target = &output,
         .value = "FILE",
         .help = "the page (default: report.html in the run's folder; here when there are several "
                 "runs)"},
    };
    const tt_command command = {
        .name = "report",
        .arguments = "RUN [RUN...]",
        .purpose = "Makes one HTML page about a run, or about up to eight to compare them: losses, "
                   "accuracies,\nsizes, ranks by layer, throughput, learning rates, recipes. The "
                   "page needs nothing but itself\nand may be made while the run goes on.",
        .example = "ttrain report runs/dense runs/compressed --output comparison.html",
        .options = options,
        .option_count = 1,
        .minimum_arguments = 1,
        .maximum_arguments = TT_CHART_RUNS,
    };
    char **folders, path[TT_REPORT_PATH];
    int count, exit_status;
    if (!tt_command_parse(&command, argc, argv, &folders, &count, &exit_status)) {
        return exit_status;
    }
    tt_error error;
    tt_report_run *runs = calloc((size_t)count, sizeof *runs);
    tt_status status = runs != NULL
                           ? report(folders, count, runs, output, path, &error)
                           : tt_error_set(&error, TT_OUT_OF_MEMORY, "no memory for the runs");
    for (int i = 0; runs != NULL && i < count; i++) {
        tt_report_free(&runs[i]);
    }
    free(runs);
    if (status != TT_OK) {
        return tt_command_failed("report", &error);
    }
    printf("%s\n", path);
    return TT_EXIT_DONE;
}
