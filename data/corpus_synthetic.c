#include "data/corpus_synthetic.h"

#include "core/random.h"
#include "data/file.h"
#include "data/text_buffer.h"

#include <ctype.h>
#include <string.h>

enum { PLACES = 3, THINGS = 8, VERBS = 6, QUALITIES = 6, ROLES = 4, TOPICS = 10, USED = 4 };

typedef struct {
    const char *singular, *plural;
} noun;

typedef struct {
    const char *places[PLACES];
    noun things[THINGS];
    const char *verbs[VERBS]; /* past tense, taking one of the things */
    const char *qualities[QUALITIES];
    const char *roles[ROLES];
} topic;

static const topic topics[TOPICS] = {
    {{"harbour", "lighthouse", "pier"},
     {{"boat", "boats"},
      {"net", "nets"},
      {"anchor", "anchors"},
      {"sail", "sails"},
      {"barrel", "barrels"},
      {"rope", "ropes"},
      {"crab", "crabs"},
      {"lantern", "lanterns"}},
     {"repaired", "hauled", "painted", "loaded", "tied", "counted"},
     {"salty", "wet", "heavy", "rusty", "torn", "blue"},
     {"sailor", "captain", "fisherman", "diver"}},
    {{"orchard", "barn", "meadow"},
     {{"apple", "apples"},
      {"basket", "baskets"},
      {"ladder", "ladders"},
      {"goat", "goats"},
      {"fence", "fences"},
      {"cart", "carts"},
      {"beehive", "beehives"},
      {"pear", "pears"}},
     {"picked", "carried", "washed", "sold", "gathered", "weighed"},
     {"ripe", "sweet", "green", "wooden", "muddy", "fresh"},
     {"farmer", "gardener", "shepherd", "neighbour"}},
    {{"observatory", "tower", "dome"},
     {{"telescope", "telescopes"},
      {"star", "stars"},
      {"planet", "planets"},
      {"comet", "comets"},
      {"map", "maps"},
      {"lens", "lenses"},
      {"moon", "moons"},
      {"clock", "clocks"}},
     {"observed", "measured", "recorded", "named", "tracked", "studied"},
     {"bright", "distant", "faint", "round", "cold", "silver"},
     {"astronomer", "student", "professor", "engineer"}},
    {{"kitchen", "bakery", "cellar"},
     {{"loaf", "loaves"},
      {"pan", "pans"},
      {"cake", "cakes"},
      {"onion", "onions"},
      {"knife", "knives"},
      {"spoon", "spoons"},
      {"recipe", "recipes"},
      {"pie", "pies"}},
     {"baked", "tasted", "cut", "served", "warmed", "ordered"},
     {"hot", "crisp", "burnt", "golden", "spicy", "soft"},
     {"cook", "baker", "waiter", "guest"}},
    {{"library", "archive", "reading room"},
     {{"book", "books"},
      {"letter", "letters"},
      {"shelf", "shelves"},
      {"manuscript", "manuscripts"},
      {"page", "pages"},
      {"poem", "poems"},
      {"dictionary", "dictionaries"},
      {"card", "cards"}},
     {"copied", "translated", "borrowed", "read", "returned", "sorted"},
     {"old", "thin", "dusty", "rare", "long", "famous"},
     {"librarian", "scholar", "author", "clerk"}},
    {{"workshop", "factory", "garage"},
     {{"engine", "engines"},
      {"wheel", "wheels"},
      {"hammer", "hammers"},
      {"bolt", "bolts"},
      {"wire", "wires"},
      {"gear", "gears"},
      {"machine", "machines"},
      {"pipe", "pipes"}},
     {"assembled", "tested", "bent", "oiled", "welded", "replaced"},
     {"broken", "steel", "noisy", "sharp", "loose", "black"},
     {"mechanic", "inventor", "welder", "apprentice"}},
    {{"forest", "cabin", "valley"},
     {{"tree", "trees"},
      {"wolf", "wolves"},
      {"mushroom", "mushrooms"},
      {"owl", "owls"},
      {"branch", "branches"},
      {"fox", "foxes"},
      {"tent", "tents"},
      {"axe", "axes"}},
     {"followed", "heard", "watched", "hid", "photographed", "noticed"},
     {"wild", "tall", "grey", "silent", "hungry", "brown"},
     {"ranger", "hunter", "hiker", "botanist"}},
    {{"theatre", "concert hall", "studio"},
     {{"violin", "violins"},
      {"song", "songs"},
      {"mask", "masks"},
      {"costume", "costumes"},
      {"drum", "drums"},
      {"curtain", "curtains"},
      {"dance", "dances"},
      {"ticket", "tickets"}},
     {"played", "rehearsed", "performed", "tuned", "lost", "praised"},
     {"loud", "gentle", "red", "slow", "popular", "modern"},
     {"actor", "singer", "violinist", "director"}},
    {{"hospital", "clinic", "laboratory"},
     {{"patient", "patients"},
      {"bandage", "bandages"},
      {"sample", "samples"},
      {"microscope", "microscopes"},
      {"bottle", "bottles"},
      {"pill", "pills"},
      {"report", "reports"},
      {"bed", "beds"}},
     {"examined", "prepared", "cleaned", "labelled", "checked", "moved"},
     {"clean", "small", "white", "careful", "empty", "warm"},
     {"doctor", "nurse", "chemist", "surgeon"}},
    {{"market", "town square", "warehouse"},
     {{"coin", "coins"},
      {"carpet", "carpets"},
      {"jar", "jars"},
      {"scarf", "scarves"},
      {"lamp", "lamps"},
      {"box", "boxes"},
      {"ring", "rings"},
      {"bag", "bags"}},
     {"bought", "traded", "wrapped", "stacked", "opened", "delivered"},
     {"cheap", "yellow", "precious", "striped", "large", "new"},
     {"merchant", "customer", "tailor", "guard"}},
};

static const char *const numbers[] = {"two", "three", "four",  "five",
                                      "six", "seven", "eight", "nine"};
static const char *const onsets[] = {"b", "d", "f", "g", "h",  "k",  "l",  "m",  "n",  "p",
                                     "r", "s", "t", "v", "br", "dr", "gr", "st", "tr", "th"};
static const char *const vowels[] = {"a", "e", "i", "o", "u", "ai", "ea", "io"};
static const char *const endings[] = {"n", "l", "r", "s", "ra", "na", "lo", "mi", "rin", "den"};
static const char *const town_endings[] = {"ford",  "ton",  "burg", "ham",
                                           "field", "port", "wick", "mouth"};
static const char *const later[] = {"Then", "After that", "Soon", "In the afternoon"};

#define COUNT(array) (sizeof(array) / sizeof(array)[0])
#define DRAW(random, array) ((array)[tt_random_below(random, COUNT(array))])

typedef struct {
    char name[32];
    bool female;
    const char *role;
} person;

typedef struct {
    const noun *noun;
    const char *quality;
    const char *number; /* NULL: there is one */
} thing;

typedef struct {
    tt_random random;
    const topic *topic;
    const char *place;
    char town[32];
    person people[2];
    thing things[USED];
    tt_text_buffer *text;
} story;

static void append(tt_text_buffer *text, const char *word)
{
    tt_text_buffer_append(text, word, strlen(word));
}

static void make_name(tt_random *random, char name[32], bool town)
{
    const char *onset = DRAW(random, onsets);
    const char *vowel = DRAW(random, vowels);
    const char *ending = town ? DRAW(random, town_endings) : DRAW(random, endings);
    snprintf(name, 32, "%s%s%s", onset, vowel, ending);
    name[0] = (char)toupper((unsigned char)name[0]);
}

static void start_story(story *story, uint64_t seed, int64_t number, tt_text_buffer *text)
{
    tt_random *random = &story->random;
    tt_random_start(random, seed, (uint64_t)number);
    story->text = text;
    story->topic = &DRAW(random, topics);
    story->place = DRAW(random, story->topic->places);
    make_name(random, story->town, true);
    uint32_t first_role = tt_random_below(random, ROLES);
    for (uint32_t i = 0; i < 2; i++) {
        person *person = &story->people[i];
        make_name(random, person->name, false);
        person->female = tt_random_below(random, 2);
        person->role = story->topic->roles[(first_role + i) % ROLES];
    }
    uint32_t first_thing = tt_random_below(random, THINGS);
    uint32_t first_quality = tt_random_below(random, QUALITIES);
    for (uint32_t i = 0; i < USED; i++) {
        thing *thing = &story->things[i];
        thing->noun = &story->topic->things[(first_thing + i) % THINGS];
        thing->quality = story->topic->qualities[(first_quality + i) % QUALITIES];
        thing->number = tt_random_below(random, 2) ? DRAW(random, numbers) : NULL;
    }
}

static const char *name_of(const thing *thing)
{
    return thing->number != NULL ? thing->noun->plural : thing->noun->singular;
}

/* What the letter behind a "%" of a sentence stands for. */
static const char *word_for(story *story, char letter, const person *person, const thing *thing)
{
    bool many = thing->number != NULL;
    switch (letter) {
    case 'p':
        return person->name;
    case 'q':
        return person == &story->people[0] ? story->people[1].name : story->people[0].name;
    case 'r':
        return person->role;
    case 's':
        return person->female ? "she" : "he";
    case 'S':
        return person->female ? "She" : "He";
    case 'h':
        return person->female ? "her" : "his";
    case 'l':
        return story->place;
    case 't':
        return story->town;
    case 'n':
        return name_of(thing);
    case 'a':
        return thing->quality;
    case 'k':
        return many ? thing->number : "one";
    case 'v':
        return DRAW(&story->random, story->topic->verbs);
    case 'w':
        return many ? "were" : "was";
    case 'd':
        return many ? "These" : "This";
    case 'e':
        return many ? "belong" : "belongs";
    case 'b':
        return many ? "they" : "it";
    default:
        return DRAW(&story->random, later);
    }
}

/* Adds one sentence as a line, with its "%" letters replaced. */
static void tell(story *story, const char *sentence, const person *person, const thing *thing)
{
    while (*sentence != '\0') {
        size_t plain = strcspn(sentence, "%");
        tt_text_buffer_append(story->text, sentence, plain);
        sentence += plain;
        if (*sentence == '%') {
            append(story->text, word_for(story, sentence[1], person, thing));
            sentence += 2;
        }
    }
    tt_text_buffer_append_byte(story->text, '\n');
}

static void tell_story(story *story)
{
    static const char *const middles[] = {
        "%p %v the %a %n.",
        "The %n in the %l %w %a.",
        "%x, %p %v the %n because %b %w %a.",
        "%x, %s %v the %a %n with %q.",
        "%d %a %n %e to %p.",
        "%p asked %q about the %a %n.",
        "%S found %k %n near the %l.",
        "%p and %q %v %k %a %n at the %l.",
    };
    const person *first = &story->people[0];
    const person *second = &story->people[1];
    tell(story, "%p was a %r at the %l near %t.", first, &story->things[0]);
    tell(story, "%p worked there as a %r, and %s often helped %q.", second, &story->things[0]);
    tell(story, "In the morning, %p %v %k %a %n.", first, &story->things[0]);
    uint32_t count = 6 + tt_random_below(&story->random, 10);
    for (uint32_t i = 0; i < count; i++) {
        const person *person = &story->people[tt_random_below(&story->random, 2)];
        const thing *thing = &story->things[(i + 1) % USED];
        tell(story, DRAW(&story->random, middles), person, thing);
    }
    tell(story, "In the evening, %p put the %a %n away.", first, &story->things[0]);
    tell(story, "Finally, %p and %q left the %l and went home to %t.", first, &story->things[0]);
    tt_text_buffer_append_byte(story->text, '\n');
}

static tt_status write_stories(int64_t documents, uint64_t seed, const tt_file_output *output,
                               tt_text_buffer *text, int64_t *bytes, tt_error *error)
{
    for (int64_t i = 0; i < documents; i++) {
        story story;
        text->length = 0;
        start_story(&story, seed, i, text);
        tell_story(&story);
        if (text->failed) {
            return tt_error_set(error, TT_OUT_OF_MEMORY, "no memory for a document");
        }
        fwrite(text->bytes, 1, text->length, tt_file_stream(output));
        TT_TRY(tt_file_check(output, error));
        *bytes += (int64_t)text->length;
    }
    return TT_OK;
}

tt_status tt_synthetic_write(int64_t documents, uint64_t seed, const char *path, int64_t *bytes,
                             tt_error *error)
{
    tt_file_output *output = NULL;
    tt_text_buffer text = {0};
    *bytes = 0;
    TT_TRY(tt_file_create(path, &output, error));
    tt_status status = write_stories(documents, seed, output, &text, bytes, error);
    tt_text_buffer_free(&text);
    if (status != TT_OK) {
        tt_file_abandon(&output);
        return status;
    }
    return tt_file_commit(&output, error);
}
