#include "launch/report_ranks.h"

#include "launch/report_scale.h"
#include "launch/report_text.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* The map's drawing in its own units. */
enum { WIDTH = 960, LEFT = 178, RIGHT = 170, TOP = 30, BOTTOM = 40, ROW = 13, GAP = 2, BLOCK = 7 };

enum { LEVELS = 8 }; /* shades from rank 0 to the highest rank of a link */

/* --- names --- */

static bool begins(const char *text, const char *start)
{
    return strncmp(text, start, strlen(start)) == 0;
}

static void cut_end(char *text, const char *end)
{
    size_t length = strlen(text), end_length = strlen(end);
    if (length > end_length && strcmp(text + length - end_length, end) == 0) {
        text[length - end_length] = '\0';
    }
}

void tt_report_map_name(const char *name, int64_t *block, char part[TT_REPORT_NAME])
{
    static const char *const starts[] = {"bert.", "cls.predictions.", "cls."};
    static const char *const names[][2] = {{"attention.self.", ""},
                                           {"attention.output", "attention output"},
                                           {"embeddings.word_embeddings", "word embeddings"}};
    static const char layer[] = "encoder.layer.";
    for (size_t i = 0; i < sizeof starts / sizeof *starts; i++) {
        name += begins(name, starts[i]) ? strlen(starts[i]) : 0;
    }
    *block = -1;
    if (begins(name, layer)) {
        char *end;
        long long number = strtoll(name + sizeof layer - 1, &end, 10);
        if (*end == '.' && number >= 0 && number < 100000) {
            *block = number;
            name = end + 1;
        }
    }
    snprintf(part, TT_REPORT_NAME, "%s", name);
    cut_end(part, ".dense");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (begins(part, names[i][0])) {
            char rest[TT_REPORT_NAME];
            snprintf(rest, sizeof rest, "%s", part + strlen(names[i][0]));
            snprintf(part, TT_REPORT_NAME, "%s%.64s", names[i][1], rest);
        }
    }
}

static void put_name(FILE *out, const char *name)
{
    int64_t block;
    char part[TT_REPORT_NAME];
    tt_report_map_name(name, &block, part);
    if (block >= 0) {
        fprintf(out, "block %lld, ", (long long)block);
    }
    tt_report_escape(out, part);
}

/* --- ranks over time --- */

static int newest(const tt_report_run *run)
{
    return run->compaction_count - 1;
}

/* The newest ranks of a map that were said. */
static const tt_report_ranks *last_ranks(const tt_report_run *run, int map)
{
    const tt_report_ranks *ranks = NULL;
    for (int i = newest(run); i >= 0 && ranks == NULL; i--) {
        ranks = tt_report_ranks_at(run, i, map);
    }
    return ranks;
}

/* Rank of a link; -1 where it is not said. */
static int64_t rank_of(const tt_report_run *run, int compaction, int map, int link)
{
    const tt_report_ranks *ranks = tt_report_ranks_at(run, compaction, map);
    return ranks != NULL && link < ranks->count ? ranks->ranks[link] : -1;
}

static int64_t highest_rank(const tt_report_run *run, int map, int link)
{
    int64_t highest = 0;
    for (int i = 0; i < run->compaction_count; i++) {
        int64_t rank = rank_of(run, i, map, link);
        highest = rank > highest ? rank : highest;
    }
    return highest;
}

/* 0 for rank 0, LEVELS for the highest, and never one of them for what lies between. */
static int level_of(int64_t rank, int64_t highest)
{
    if (rank <= 0 || highest <= 0) {
        return 0;
    }
    int level = rank >= highest ? LEVELS : (int)((double)rank / (double)highest * LEVELS);
    return level < 1 ? 1 : level;
}

typedef struct {
    FILE *out;
    const tt_report_run *run;
    tt_scale x;
    double y; /* of the next row */
} drawing;

/* A link's stretches of equal rank, in a row of its own. */
static void put_link(const drawing *drawing, int map, int link, double height)
{
    const tt_report_run *run = drawing->run;
    int64_t highest = highest_rank(run, map, link);
    for (int begin = 0, end; begin < run->compaction_count; begin = end) {
        int64_t rank = rank_of(run, begin, map, link);
        end = begin + 1;
        while (end < run->compaction_count && rank_of(run, end, map, link) == rank) {
            end++;
        }
        if (rank < 0) {
            continue;
        }
        double until = end < run->compaction_count ? run->compactions[end].step : drawing->x.high;
        double from = tt_scale_at(&drawing->x, run->compactions[begin].step);
        double to = tt_scale_at(&drawing->x, until);
        char step[TT_REPORT_NUMBER];
        fprintf(drawing->out,
                "<rect class=\"h%d\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"><title>",
                level_of(rank, highest), from, drawing->y, fmax(to - from, 0.5), height);
        put_name(drawing->out, run->maps[map].name);
        fprintf(drawing->out, ", link %d: rank %lld of %lld from step %s on</title></rect>", link,
                (long long)rank, (long long)highest,
                tt_report_integer(run->compactions[begin].step, step));
    }
}

/* Left the name, in the middle a row a link, right the newest ranks. */
static void put_map_row(drawing *drawing, int map, bool new_block)
{
    const tt_report_run *run = drawing->run;
    const tt_report_ranks *ranks = last_ranks(run, map);
    int links = ranks->count - 2;
    double height = links * 4 > ROW ? 4 : (double)ROW / links;
    int64_t block;
    char part[TT_REPORT_NAME];
    tt_report_map_name(run->maps[map].name, &block, part);
    drawing->y += new_block ? BLOCK : GAP;
    double top = drawing->y;
    for (int link = 1; link <= links; link++) {
        put_link(drawing, map, link, height);
        drawing->y += height;
    }
    double middle = (top + drawing->y) / 2 + 4;
    if (new_block && block >= 0) {
        fprintf(drawing->out, "<text class=\"strong\" x=\"4\" y=\"%.1f\">block %lld</text>", middle,
                (long long)block);
    }
    fprintf(drawing->out, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">", LEFT - 8, middle);
    tt_report_escape(drawing->out, part);
    fprintf(drawing->out, "</text><text x=\"%d\" y=\"%.1f\">", WIDTH - RIGHT + 8, middle);
    if (tt_report_is_removed(ranks)) {
        fputs("removed", drawing->out);
    }
    for (int link = 1; link <= links && !tt_report_is_removed(ranks); link++) {
        fprintf(drawing->out, "%s%lld", link > 1 ? " " : "", (long long)ranks->ranks[link]);
    }
    fputs("</text>", drawing->out);
}

static bool has_links(const tt_report_run *run, int map)
{
    const tt_report_ranks *ranks = last_ranks(run, map);
    return ranks != NULL && ranks->count > 2;
}

static void put_rows(drawing *drawing)
{
    int64_t earlier = -2;
    for (int map = 0; map < drawing->run->map_count; map++) {
        if (has_links(drawing->run, map)) {
            int64_t block;
            char part[TT_REPORT_NAME];
            tt_report_map_name(drawing->run->maps[map].name, &block, part);
            put_map_row(drawing, map, block != earlier);
            earlier = block;
        }
    }
}

static void put_steps(const drawing *drawing)
{
    FILE *out = drawing->out;
    char label[TT_SCALE_LABEL];
    fputs("<path class=\"axis\" d=\"", out);
    for (int i = 0; i < drawing->x.tick_count; i++) {
        fprintf(out, "M%.1f %.1fv5", tt_scale_at(&drawing->x, drawing->x.ticks[i]), drawing->y + 3);
    }
    fputs("\"/>", out);
    for (int i = 0; i < drawing->x.tick_count; i++) {
        double value = drawing->x.ticks[i];
        fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%s</text>",
                tt_scale_at(&drawing->x, value), drawing->y + 20,
                tt_scale_label(&drawing->x, value, label));
    }
    fprintf(out, "<text class=\"label\" x=\"%d\" y=\"%.1f\" text-anchor=\"end\">step</text>",
            LEFT - 8, drawing->y + 20);
}

static void put_shades(FILE *out)
{
    fputs("<p class=\"shades\">removed ", out);
    for (int level = 0; level <= LEVELS; level++) {
        fprintf(out, "<span class=\"shade h%d\"></span>", level);
    }
    fputs(" highest rank of the link</p>", out);
}

/* Height of all rows; the same walk as put_rows. */
static double rows_height(const tt_report_run *run)
{
    double height = 0;
    int64_t earlier = -2, block;
    char part[TT_REPORT_NAME];
    for (int map = 0; map < run->map_count; map++) {
        if (has_links(run, map)) {
            int links = last_ranks(run, map)->count - 2;
            tt_report_map_name(run->maps[map].name, &block, part);
            height += (block != earlier ? BLOCK : GAP) + (links * 4 > ROW ? links * 4 : ROW);
            earlier = block;
        }
    }
    return height;
}

void tt_report_put_rank_map(FILE *out, const tt_report_run *run, int number)
{
    double height = rows_height(run);
    if (run->compaction_count < 2 || height == 0) {
        return;
    }
    drawing drawing = {.out = out, .run = run, .y = TOP - BLOCK};
    double last =
        fmax(run->records[run->record_count - 1].step, run->compactions[newest(run)].step);
    drawing.x = tt_scale_make(run->compactions[0].step, last, 7, false, TT_CHART_NUMBER);
    drawing.x.from = LEFT;
    drawing.x.to = WIDTH - RIGHT;
    fprintf(out,
            "<figure class=\"wide\" id=\"ranks-%d\"><figcaption><h3>Ranks by map and link</h3>"
            "<p>One thin row for each inner link of a tensor train, from its first to its last; "
            "colour: its rank as a part of the highest it had. On the right the ranks now.</p>"
            "</figcaption>",
            number);
    put_shades(out);
    fprintf(out,
            "<div class=\"scroll\"><svg class=\"ranks\" viewBox=\"0 0 %d %.0f\" role=\"img\" "
            "aria-labelledby=\"ranks-%d-t ranks-%d-d\"><title id=\"ranks-%d-t\">Ranks by map and "
            "link</title><desc id=\"ranks-%d-d\">The table of all maps below has the same ranks as "
            "they are now.</desc><text class=\"label\" x=\"%d\" y=\"13\">ranks now</text>",
            WIDTH, TOP + height + BOTTOM, number, number, number, number, WIDTH - RIGHT + 8);
    put_rows(&drawing);
    put_steps(&drawing);
    fputs("</svg></div></figure>\n", out);
}

/* --- sizes --- */

static double dense_size(const tt_report_map *map)
{
    return map->inputs * map->outputs;
}

static void put_count_cell(FILE *out, double value)
{
    char text[TT_REPORT_NUMBER];
    fprintf(out, "<td>%s</td>", tt_report_integer(value, text));
}

static void put_compression_cell(FILE *out, double dense, double size)
{
    char text[TT_REPORT_NUMBER];
    fprintf(out, "<td>%s%s</td>", tt_report_real(size > 0 ? dense / size : NAN, text),
            size > 0 && isfinite(dense) ? "\xC3\x97" : "");
}

typedef struct {
    int maps, removed;
    double size, dense;
} sum;

static void add_map(sum *to, const tt_report_run *run, int map)
{
    const tt_report_ranks *ranks = last_ranks(run, map);
    to->maps++;
    to->removed += tt_report_is_removed(ranks);
    to->size += tt_report_map_parameters(&run->maps[map], ranks);
    to->dense += dense_size(&run->maps[map]);
}

static void put_sum(FILE *out, const char *class, const char *name, const sum *row)
{
    char text[TT_REPORT_NUMBER];
    fprintf(out, "<tr%s><th scope=\"row\">", class);
    tt_report_escape(out, name);
    fprintf(out, "</th>");
    if (row->maps > 0) {
        fprintf(out, "<td>%d</td><td>%d</td>", row->maps, row->removed);
    } else {
        fputs("<td></td><td></td>", out);
    }
    put_count_cell(out, row->size);
    put_count_cell(out, row->dense);
    put_compression_cell(out, row->dense, row->size);
    fprintf(out, "<td>%s</td></tr>", tt_report_bytes(4 * row->size, text));
}

/* Maps of the same part in all blocks together; a kind stands where its first map does. */
static sum put_kinds(FILE *out, const tt_report_run *run)
{
    sum all = {.maps = 0};
    int64_t block;
    char part[TT_REPORT_NAME], other[TT_REPORT_NAME];
    for (int map = 0; map < run->map_count; map++) {
        sum kind = {.maps = 0};
        bool first = true;
        tt_report_map_name(run->maps[map].name, &block, part);
        for (int i = 0; i < run->map_count && first; i++) {
            tt_report_map_name(run->maps[i].name, &block, other);
            if (strcmp(part, other) == 0) {
                first = i >= map;
                add_map(&kind, run, i);
            }
        }
        if (first) {
            put_sum(out, "", part, &kind);
        }
        add_map(&all, run, map);
    }
    return all;
}

void tt_report_put_sizes(FILE *out, const tt_report_run *run)
{
    if (run->map_count == 0 ||
        !isfinite(tt_report_map_parameters(&run->maps[0], last_ranks(run, 0)))) {
        return;
    }
    double parameters = tt_report_parameters(run);
    fputs("<div class=\"scroll\"><table><caption>Sizes by kind of map</caption><thead><tr>"
          "<th scope=\"col\">kind</th><th scope=\"col\">maps</th><th scope=\"col\">removed</th>"
          "<th scope=\"col\">parameters</th><th scope=\"col\">dense</th>"
          "<th scope=\"col\">compression</th><th scope=\"col\">f32</th></tr></thead><tbody>",
          out);
    sum all = put_kinds(out, run);
    put_sum(out, " class=\"sum\"", "all tensor trains", &all);
    sum rest = {.size = parameters - all.size, .dense = run->dense_parameters - all.dense};
    /* A table that is a tensor train may have more rows than there are words. */
    rest.dense = rest.dense >= rest.size ? rest.dense : NAN;
    sum whole = {.size = parameters, .dense = run->dense_parameters};
    put_sum(out, "", "embeddings, biases and other dense parameters", &rest);
    put_sum(out, " class=\"sum\"", "whole model", &whole);
    fputs("</tbody></table></div>\n", out);
}

/* --- every map --- */

static void put_modes(FILE *out, const tt_report_map *map)
{
    double inputs = 1;
    bool output_side = false;
    fputs("<td class=\"list\">", out);
    for (int k = 0; k < map->mode_count; k++) {
        fprintf(out, "%s%lld", k > 0 ? " " : "", (long long)map->modes[k]);
        inputs *= (double)map->modes[k];
        if (!output_side && inputs == map->inputs && k + 1 < map->mode_count) {
            output_side = true;
            fputs(" \xE2\x86\x92", out);
        }
    }
    fputs(map->mode_count == 0 ? "\xE2\x80\x93</td>" : "</td>", out);
}

static void put_ranks(FILE *out, const tt_report_run *run, int map, const tt_report_ranks *ranks)
{
    fputs("<td class=\"list\">", out);
    for (int link = 1; ranks != NULL && link + 1 < ranks->count; link++) {
        fprintf(out, "<span class=\"rank h%d\">%lld</span>",
                level_of(ranks->ranks[link], highest_rank(run, map, link)),
                (long long)ranks->ranks[link]);
    }
    fputs(ranks == NULL ? "\xE2\x80\x93</td>" : "</td>", out);
}

void tt_report_put_maps(FILE *out, const tt_report_run *run)
{
    if (run->map_count == 0) {
        return;
    }
    fprintf(out,
            "<details><summary>All %d tensor trains</summary><div class=\"scroll\"><table>"
            "<thead><tr><th scope=\"col\">map</th><th scope=\"col\">modes, in \xE2\x86\x92 out</th>"
            "<th scope=\"col\">inner ranks</th><th scope=\"col\">parameters</th>"
            "<th scope=\"col\">dense</th><th scope=\"col\">compression</th></tr></thead><tbody>",
            run->map_count);
    for (int map = 0; map < run->map_count; map++) {
        const tt_report_ranks *ranks = last_ranks(run, map);
        double size = tt_report_map_parameters(&run->maps[map], ranks);
        double dense = dense_size(&run->maps[map]);
        fputs("<tr><th scope=\"row\">", out);
        put_name(out, run->maps[map].name);
        fputs(tt_report_is_removed(ranks) ? " (removed)</th>" : "</th>", out);
        put_modes(out, &run->maps[map]);
        put_ranks(out, run, map, ranks);
        put_count_cell(out, size);
        put_count_cell(out, dense);
        put_compression_cell(out, dense, size);
        fputs("</tr>", out);
    }
    fputs("</tbody></table></div></details>\n", out);
}
