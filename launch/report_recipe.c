#include "launch/report_recipe.h"

#include "launch/report_text.h"

#include <stdlib.h>
#include <string.h>

enum { SETTINGS = 1024, DEPTH = 16 };

/* Where the walk over the lines stands: the key and, in a list of sections, the entry a level. */
typedef struct {
    char keys[DEPTH][TT_REPORT_NAME];
    int entries[DEPTH]; /* -1: not a list */
} place;

static void join_key(const place *at, int depth, char key[TT_REPORT_NAME])
{
    size_t used = 0;
    key[0] = '\0';
    for (int i = 0; i <= depth && used < TT_REPORT_NAME - 1; i++) {
        int length = at->entries[i] >= 0 && i < depth
                         ? snprintf(key + used, TT_REPORT_NAME - used, "%s%s.%d", i > 0 ? "." : "",
                                    at->keys[i], at->entries[i])
                         : snprintf(key + used, TT_REPORT_NAME - used, "%s%s", i > 0 ? "." : "",
                                    at->keys[i]);
        used += (size_t)length;
    }
}

/* One line; true when it holds a value. */
static bool read_setting(place *at, const char *line, size_t length, tt_report_setting *setting)
{
    size_t blanks = strspn(line, " ");
    size_t depth = blanks / 2;
    if (depth > DEPTH) {
        return false;
    }
    if (blanks < length && strncmp(line + blanks, "- ", 2) == 0 && depth > 0 && depth < DEPTH) {
        at->entries[depth - 1]++;
        blanks += 2;
    } else if (depth > 1 && at->entries[depth - 2] >= 0) {
        depth--; /* inside an entry, whose dash takes a level */
    }
    const char *colon = blanks < length ? memchr(line + blanks, ':', length - blanks) : NULL;
    if (colon == NULL || depth >= DEPTH || line[blanks] == '#') {
        return false;
    }
    snprintf(at->keys[depth], TT_REPORT_NAME, "%.*s", (int)(colon - line - (ptrdiff_t)blanks),
             line + blanks);
    at->entries[depth] = -1;
    size_t value = (size_t)(colon - line) + 1;
    value += value < length ? strspn(line + value, " ") : 0;
    if (value >= length) {
        return false;
    }
    join_key(at, (int)depth, setting->key);
    size_t rest = length - value < TT_REPORT_NAME ? length - value : TT_REPORT_NAME - 1;
    snprintf(setting->value, sizeof setting->value, "%.*s", (int)rest, line + value);
    return true;
}

int tt_report_settings(const char *recipe, tt_report_setting *settings, int capacity)
{
    place at = {.entries = {0}};
    int count = 0;
    for (int i = 0; i < DEPTH; i++) {
        at.entries[i] = -1;
    }
    while (recipe != NULL && *recipe != '\0' && count < capacity) {
        size_t length = strcspn(recipe, "\n");
        count += read_setting(&at, recipe, length, &settings[count]);
        recipe += length + (recipe[length] == '\n');
    }
    return count;
}

/* --- differences --- */

typedef struct {
    tt_report_setting *settings;
    int count;
} list;

static const char *value_of(const list *list, const char *key)
{
    for (int i = 0; i < list->count; i++) {
        if (strcmp(list->settings[i].key, key) == 0) {
            return list->settings[i].value;
        }
    }
    return NULL;
}

static bool same(const char *left, const char *right)
{
    return left == right || (left != NULL && right != NULL && strcmp(left, right) == 0);
}

static void put_row(FILE *out, const list *lists, int count, const char *key)
{
    fputs("<tr><th scope=\"row\">", out);
    tt_report_escape(out, key);
    fputs("</th>", out);
    for (int i = 0; i < count; i++) {
        const char *value = value_of(&lists[i], key);
        fputs("<td class=\"list\">", out);
        tt_report_escape(out, value != NULL ? value : "\xE2\x80\x93");
        fputs("</td>", out);
    }
    fputs("</tr>", out);
}

/* Keys in the order of the first recipe that has them. */
static int put_rows(FILE *out, const list *lists, int count)
{
    int rows = 0;
    for (int i = 0; i < count; i++) {
        for (int j = 0; j < lists[i].count; j++) {
            const char *key = lists[i].settings[j].key, *value = lists[i].settings[j].value;
            bool earlier = strcmp(key, "output") == 0, differs = false;
            for (int k = 0; k < count; k++) {
                earlier = earlier || (k < i && value_of(&lists[k], key) != NULL);
                differs = differs || !same(value_of(&lists[k], key), value);
            }
            if (differs && !earlier) {
                put_row(out, lists, count, key);
                rows++;
            }
        }
    }
    return rows;
}

tt_status tt_report_put_differences(FILE *out, const tt_report_run *runs, int count,
                                    tt_error *error)
{
    list *lists = calloc((size_t)count, sizeof *lists);
    tt_status status = TT_OK;
    for (int i = 0; lists != NULL && i < count; i++) {
        lists[i].settings = malloc(SETTINGS * sizeof *lists[i].settings);
        if (lists[i].settings == NULL) {
            status = TT_OUT_OF_MEMORY;
            break;
        }
        lists[i].count = tt_report_settings(runs[i].recipe, lists[i].settings, SETTINGS);
    }
    if (lists == NULL || status != TT_OK) {
        status = tt_error_set(error, TT_OUT_OF_MEMORY, "no memory for the recipes");
    } else {
        fputs("<div class=\"scroll\"><table><caption>What differs</caption><thead><tr>"
              "<th scope=\"col\">key</th>",
              out);
        for (int i = 0; i < count; i++) {
            fprintf(out, "<th scope=\"col\"><b class=\"badge c%d\">%c</b></th>", i, 'A' + i);
        }
        fputs("</tr></thead><tbody>", out);
        if (put_rows(out, lists, count) == 0) {
            fprintf(out, "<tr><td colspan=\"%d\">nothing</td></tr>", count + 1);
        }
        fputs("</tbody></table></div>\n", out);
    }
    for (int i = 0; lists != NULL && i < count; i++) {
        free(lists[i].settings);
    }
    free(lists);
    return status;
}

void tt_report_put_recipe(FILE *out, const tt_report_run *run, const char *label)
{
    if (run->recipe == NULL) {
        return;
    }
    fputs("<details><summary>", out);
    tt_report_escape(out, label);
    fputs("</summary><pre>", out);
    tt_report_escape(out, run->recipe);
    fputs("</pre></details>\n", out);
}
