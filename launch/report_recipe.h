/* Recipes in a report: as they are, and what differs between those of several runs.
 * Inside launch/report*.c only. */
#ifndef TT_LAUNCH_REPORT_RECIPE_H
#define TT_LAUNCH_REPORT_RECIPE_H

#include "launch/report_data.h"

/* A value of a recipe's text with the path to it: "phases.0.steps". */
typedef struct {
    char key[TT_REPORT_NAME];
    char value[TT_REPORT_NAME];
} tt_report_setting;

/* Splits the text that ttrain writes (a key a line, two blanks a level, lists of sections with
 * dashes) into at most `capacity` settings; how many there are. Other YAML gives some of them. */
int tt_report_settings(const char *recipe, tt_report_setting *settings, int capacity);

/* A table of the keys in which the runs differ, folders left out; nothing where there is none. */
tt_status tt_report_put_differences(FILE *out, const tt_report_run *runs, int count,
                                    tt_error *error);
/* A run's recipe, folded away. */
void tt_report_put_recipe(FILE *out, const tt_report_run *run, const char *label);

#endif
