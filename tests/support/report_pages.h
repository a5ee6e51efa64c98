/* What must hold for any run's page; aborts or fails the caller's check where it does not. */
#ifndef TT_TESTS_SUPPORT_REPORT_PAGES_H
#define TT_TESTS_SUPPORT_REPORT_PAGES_H

#include "launch/report_page.h"

#include <expat.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define REPORT_UNUSED __attribute__((unused))

enum { PAGE_IDS = 4096, PAGE_ID = 64 };

/* What a walk over a page's elements found. */
typedef struct {
    char ids[PAGE_IDS][PAGE_ID];
    char wanted[PAGE_IDS][PAGE_ID]; /* ids that others refer to */
    int id_count, wanted_count;
    int scripts, figures, tables;
    int foreign; /* things loaded or linked from elsewhere */
    const char *problem;
} page_check;

static REPORT_UNUSED void page_want(page_check *check, const char *ids)
{
    while (*ids != '\0') {
        size_t length = strcspn(ids, " )");
        if (check->wanted_count < PAGE_IDS && length < PAGE_ID) {
            snprintf(check->wanted[check->wanted_count++], PAGE_ID, "%.*s", (int)length, ids);
        }
        ids += length + (ids[length] != '\0');
    }
}

static REPORT_UNUSED void page_attribute(page_check *check, const char *name, const char *value)
{
    if (strcmp(name, "id") == 0 && check->id_count < PAGE_IDS) {
        snprintf(check->ids[check->id_count++], PAGE_ID, "%s", value);
    } else if (strcmp(name, "aria-labelledby") == 0) {
        page_want(check, value);
    } else if (strcmp(name, "href") == 0 && value[0] == '#') {
        page_want(check, value + 1);
    } else if (strcmp(name, "clip-path") == 0) {
        page_want(check, value + strlen("url(#"));
    } else if (strcmp(name, "src") == 0 ||
               (strcmp(name, "href") == 0 && strcmp(value, "data:,") != 0)) {
        check->foreign++;
    }
    if (strncmp(name, "on", 2) == 0) {
        check->scripts++;
    }
    if (strstr(value, "nan") != NULL || strstr(value, "inf") != NULL) {
        check->problem = "a coordinate is not finite";
    }
}

static REPORT_UNUSED void page_element(void *data, const char *name, const char **attributes)
{
    page_check *check = data;
    check->scripts += strcmp(name, "script") == 0;
    check->figures += strcmp(name, "figure") == 0;
    check->tables += strcmp(name, "table") == 0;
    for (int i = 0; attributes[i] != NULL; i += 2) {
        page_attribute(check, attributes[i], attributes[i + 1]);
    }
}

static REPORT_UNUSED int page_id_count(const page_check *check, const char *id)
{
    int count = 0;
    for (int i = 0; i < check->id_count; i++) {
        count += strcmp(check->ids[i], id) == 0;
    }
    return count;
}

/* What is wrong with a page, NULL where nothing is: it is well-formed, its ids are different, what
 * they are referred to by exists, nothing is run and nothing loaded. */
static REPORT_UNUSED const char *page_problem(const char *page, size_t size, page_check *check)
{
    XML_Parser parser = XML_ParserCreate("UTF-8");
    *check = (page_check){.problem = NULL};
    XML_SetUserData(parser, check);
    XML_SetElementHandler(parser, page_element, NULL);
    if (XML_Parse(parser, page, (int)size, 1) != XML_STATUS_OK) {
        check->problem = XML_ErrorString(XML_GetErrorCode(parser));
    }
    XML_ParserFree(parser);
    for (int i = 0; i < check->id_count && check->problem == NULL; i++) {
        check->problem = page_id_count(check, check->ids[i]) == 1 ? NULL : "an id stands twice";
    }
    for (int i = 0; i < check->wanted_count && check->problem == NULL; i++) {
        check->problem =
            page_id_count(check, check->wanted[i]) == 1 ? NULL : "an id that is named is not there";
    }
    if (check->problem == NULL && check->scripts + check->foreign > 0) {
        check->problem = "the page runs or loads something";
    }
    return check->problem;
}

/* A run's page in memory; free with free(). NULL where it could not be made. */
static REPORT_UNUSED char *page_of(const tt_report_run *runs, int count, size_t *size)
{
    char *page = NULL;
    tt_error error;
    FILE *stream = open_memstream(&page, size);
    if (stream == NULL) {
        return NULL;
    }
    tt_status status = tt_report_put_page(stream, runs, count, &error);
    fclose(stream);
    if (status != TT_OK) {
        free(page);
        return NULL;
    }
    return page;
}

#endif
