/* The passes of the wikitext cleaner, in the order in which they run. Each reads `input`, appends
 * what is left to `output` and takes time linear in the length of `input`. */
#ifndef TT_DATA_WIKI_PASSES_H
#define TT_DATA_WIKI_PASSES_H

#include "data/text_buffer.h"
#include "data/wiki_markup.h"

/* Characters of <nowiki> text that would otherwise be mark-up are carried through the passes as
 * single control bytes: TT_WIKI_ESCAPED[i] as byte TT_WIKI_ESCAPE + i. */
#define TT_WIKI_ESCAPED "[]{}|'=*#:;_<&"
enum { TT_WIKI_ESCAPE = 0x0E };

/* Where the next byte of `input` is read after something before `i` was left out: a line must not
 * seem to start with a space, which has a meaning, because what stood before that space is gone. */
size_t tt_wiki_after_removal(const tt_text_buffer *input, size_t i, const tt_text_buffer *output);

/* Comments, <nowiki>, elements whose content is no text, all other tags. */
void tt_wiki_remove_tags(const tt_text_buffer *input, tt_text_buffer *output);

/* {{templates}}, {{{parameters}}} and {| tables |}. */
void tt_wiki_remove_templates(const tt_text_buffer *input, tt_text_buffer *output);

/* [[links]] and [http://address labels]. */
void tt_wiki_resolve_links(const tt_text_buffer *input, const tt_wiki_markup_options *options,
                           tt_text_buffer *output);

/* Appends what a template shows, given what stands between its braces; appends nothing for a
 * template that is not known to stand inside sentences. */
void tt_wiki_expand_template(const char *content, size_t length, tt_text_buffer *output);

/* Appends a short formula in TeX as plain text ("x_1 \leq \alpha" as "x1 <= alpha" with the proper
 * signs); false, and nothing appended, where it is long or uses what plain text cannot show. */
bool tt_wiki_render_formula(const char *bytes, size_t length, tt_text_buffer *output);

/* Appends one byte of text that must not be taken as mark-up by the passes to come. */
void tt_wiki_append_escaped(tt_text_buffer *output, char byte);

/* The code point of the entity whose name (without "&" and ";", "#..." included) is given, or -1.
 */
int tt_html_entity(const char *name, size_t length);

#endif
