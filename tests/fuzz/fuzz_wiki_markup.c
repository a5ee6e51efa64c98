/* libFuzzer target: any bytes as a page of wikitext; the first byte selects the options.
 *     fuzz_wiki_markup -max_len=4096 CORPUS_FOLDER */
#include "data/wiki_markup.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* What is promised of every line. */
static void check_line(void *user, const char *bytes, size_t length)
{
    (void)user;
    if (length == 0 || bytes[0] == ' ' || bytes[length - 1] == ' ' ||
        memchr(bytes, '\n', length) != NULL || memchr(bytes, '\0', length) != NULL) {
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) {
        return 0;
    }
    static const char *const names[] = {"Datei"};
    const tt_wiki_markup_options options = {.keep_headings = data[0] & 1,
                                            .keep_lists = data[0] & 2,
                                            .dropped_namespaces = names,
                                            .dropped_namespace_count = 1};
    tt_error error;
    const char *page = (const char *)data + 1;
    tt_wiki_markup_is_redirect(page, size - 1);
    return tt_wiki_markup_clean(page, size - 1, &options, check_line, NULL, &error) == TT_OK ? 0
                                                                                             : -1;
}
