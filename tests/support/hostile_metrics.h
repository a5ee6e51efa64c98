/* What must hold for any bytes at all as the metrics of a run; aborts where it does not. For the
 * fuzzer and for the mutation test that always runs. */
#ifndef TT_TESTS_SUPPORT_HOSTILE_METRICS_H
#define TT_TESTS_SUPPORT_HOSTILE_METRICS_H

#include "support/hostile_input.h"
#include "support/report_pages.h"

/* The metrics are refused in one line, or steps rise and the page is a page. Returns whether they
 * were read. */
static HOSTILE_UNUSED bool hostile_metrics(const void *bytes, size_t size)
{
    static tt_report_run run;
    static page_check check;
    tt_error error = {.status = TT_OK};
    FILE *stream = size > 0 ? fmemopen((void *)bytes, size, "r") : fopen("/dev/null", "r");
    hostile_require(stream != NULL);
    run = (tt_report_run){.record_count = 0};
    tt_status status = tt_report_read_metrics(stream, "fuzz", &run, &error);
    fclose(stream);
    if (status != TT_OK) {
        hostile_error(&error);
        tt_report_free(&run);
        return false;
    }
    /* Half of the bytes that the metrics have stand for a recipe as well. */
    run.recipe = calloc(size / 2 + 1, 1);
    hostile_require(run.recipe != NULL);
    memcpy(run.recipe, bytes, size / 2);
    for (int64_t i = 1; i < run.record_count; i++) {
        hostile_require(run.records[i].step > run.records[i - 1].step);
    }
    for (int i = 1; i < run.compaction_count; i++) {
        hostile_require(run.compactions[i].step > run.compactions[i - 1].step);
    }
    size_t page_size;
    char *page = page_of(&run, 1, &page_size);
    hostile_require(page != NULL);
    hostile_require(page_problem(page, page_size, &check) == NULL);
    free(page);
    const tt_report_run twice[2] = {run, run};
    page = page_of(twice, 2, &page_size);
    hostile_require(page != NULL);
    hostile_require(page_problem(page, page_size, &check) == NULL);
    free(page);
    tt_report_free(&run);
    return true;
}

#endif
