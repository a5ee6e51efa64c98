/* The page of a report: HTML that is also XML, without script, with nothing loaded from elsewhere.
 * Inside launch/report*.c only. */
#ifndef TT_LAUNCH_REPORT_PAGE_H
#define TT_LAUNCH_REPORT_PAGE_H

#include "launch/report_chart.h"
#include "launch/report_data.h"

/* Writes the page of 1 to TT_CHART_RUNS runs. What the stream refuses is for the caller to find. */
tt_status tt_report_put_page(FILE *out, const tt_report_run *runs, int count, tt_error *error);

/* The charts of one section. */
typedef enum {
    TT_REPORT_QUALITY, /* losses, accuracies */
    TT_REPORT_SIZES,   /* parameters, sizes, compression */
    TT_REPORT_SPEED,
    TT_REPORT_OPTIMIZER, /* learning rates, gradient norm */
} tt_report_section;

tt_status tt_report_put_charts(FILE *out, tt_report_section section, const tt_report_run *runs,
                               const char *const *labels, int count, tt_error *error);
/* Stages and branches as bars over the steps; nothing where no run has any. */
void tt_report_put_stages(FILE *out, const tt_report_run *runs, const char *const *labels,
                          int count);
/* Whether any run would give the section a chart. */
bool tt_report_has_charts(tt_report_section section, const tt_report_run *runs, int count);

/* The page's style sheet, in pieces; ends with NULL. */
extern const char *const tt_report_style[];

#endif
