/* The parts of a report that are about tensor trains: ranks by map and link over time, sizes by
 * kind of map, and every map by itself. Inside launch/report*.c only. */
#ifndef TT_LAUNCH_REPORT_RANKS_H
#define TT_LAUNCH_REPORT_RANKS_H

#include "launch/report_data.h"

/* "block 3, query" for "bert.encoder.layer.3.attention.self.query". `block` is -1 where there is
 * none; `part` names the map inside it, or all of it. */
void tt_report_map_name(const char *name, int64_t *block, char part[TT_REPORT_NAME]);

/* A figure with a row a link and a colour a rank, where ranks have been logged more than once. */
void tt_report_put_rank_map(FILE *out, const tt_report_run *run, int number);
/* Sizes by kind of map, where the shapes are known. */
void tt_report_put_sizes(FILE *out, const tt_report_run *run);
/* Modes, ranks and size of every map. */
void tt_report_put_maps(FILE *out, const tt_report_run *run);

#endif
