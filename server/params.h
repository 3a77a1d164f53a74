/* The typed fields of a request body, from params.def. Strings and JSON values are borrowed from
 * the parsed body. Any thread. */
#ifndef SERVER_PARAMS_H
#define SERVER_PARAMS_H

#include "server/json.h"

enum srv_endpoint {
    SRV_EP_CHAT = 1,
    SRV_EP_TEXT = 2,
    SRV_EP_TOK = 4,
    SRV_EP_DETOK = 8,
    SRV_EP_EMBED = 16
};

#define SRV_CTYPE_BOOL bool
#define SRV_CTYPE_INT  int64_t
#define SRV_CTYPE_NUM  double
#define SRV_CTYPE_STR  json_t *
#define SRV_CTYPE_ARR  json_t *
#define SRV_CTYPE_OBJ  json_t *
#define SRV_CTYPE_ANY  json_t *

enum srv_param {
#define PARAM(ep, name, type, member, def, low, high, text) SRV_P_##member,
#include "server/params.def"
#undef PARAM
    SRV_P_COUNT
};
_Static_assert(SRV_P_COUNT <= 64, "struct srv_params has one bit per field");

struct srv_params {
#define PARAM(ep, name, type, member, def, low, high, text) SRV_CTYPE_##type member;
#include "server/params.def"
#undef PARAM
    uint64_t given; /* bit per enum srv_param */
};

static inline bool srv_given(const struct srv_params *p, enum srv_param id)
{
    return p->given >> id & 1;
}
/* Lowest and highest value of an INT or NUM field. */
void srv_params_bounds(enum srv_param id, int64_t *low, int64_t *high);
/* Reads the fields of one endpoint. CN_ETYPE, CN_ERANGE and CN_EUNSUPP
 * name the field. */
int srv_params_read(struct srv_params *p, json_t *body, enum srv_endpoint ep, struct cn_error *err);

#endif
