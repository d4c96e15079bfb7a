"""What PostgreSQL itself sees to, whichever program writes: who may move a node where, and that no history is bent.

A login that is a member of `muster_infra` alone, or of `muster_holder` alone, is held to its role. The owner, and
who is a member of both, is not; but for them too a node only makes moves that its life has, and every move is told.
"""

INFRA = "infra"
HOLDER = "holder"
_ROADS = {
    INFRA: {
        "": "planned provisioning awaiting-identity",
        "planned": "provisioning awaiting-identity retiring",
        "provisioning": "awaiting-identity provision-failed",
        "provision-failed": "provisioning planned retiring",
        "awaiting-identity": "provisioning retiring",
        "onboarding": "retiring",
        "onboard-failed": "awaiting-identity retiring",
        "awaiting-verification": "awaiting-identity retiring",
        "verifying": "retiring",
        "verify-failed": "awaiting-identity retiring",
        "in-service": "awaiting-identity retiring",
        "decommissioning": "retiring",
        "decommission-failed": "retiring",
        "awaiting-retirement": "retiring awaiting-identity",
        "retiring": "retired retire-failed",
        "retire-failed": "retiring",
        "retired": "planned",
    },
    HOLDER: {
        "awaiting-identity": "onboarding",
        "onboarding": "awaiting-verification onboard-failed",
        "onboard-failed": "onboarding decommissioning",
        "awaiting-verification": "verifying decommissioning",
        "verifying": "in-service verify-failed",
        "verify-failed": "verifying onboarding decommissioning",
        "in-service": "verify-failed decommissioning",
        "decommissioning": "awaiting-retirement decommission-failed",
        "decommission-failed": "decommissioning",
    },
}
MOVES = tuple(
    (before, after, role)
    for role, road in _ROADS.items()
    for before, afters in road.items()
    for after in afters.split()
)
"""before ('' for a new node), after, whose move it is."""

STATEMENTS = (
    """
    CREATE FUNCTION muster_role() RETURNS text LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
        SELECT CASE WHEN infra AND NOT holder THEN 'infra' WHEN holder AND NOT infra THEN 'holder' END
        FROM (
            SELECT
                coalesce(bool_or(rolname = 'muster_infra'), false) AS infra,
                coalesce(bool_or(rolname = 'muster_holder'), false) AS holder
            FROM pg_roles
            WHERE rolname IN ('muster_infra', 'muster_holder') AND pg_has_role(current_user, oid, 'MEMBER')
        ) AS mine
    $$
    """,
    """
    CREATE FUNCTION muster_may(old_state text, new_state text) RETURNS boolean
    LANGUAGE sql STABLE SET search_path = {schema}, pg_temp AS $$
        SELECT EXISTS (
            SELECT FROM moves
            WHERE before = coalesce(old_state, '') AND after = new_state
                AND role = coalesce({schema}.muster_role(), role)
        ) OR (old_state IS NULL AND {schema}.muster_role() IS NULL)
    $$
    """,
    # A time as every reader can read it: in UTC, and one that there is; Python knows no 24:00. No backslash: a
    # session may have them mean something else in a text.
    """
    CREATE FUNCTION muster_moment(told text) RETURNS timestamptz
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
    BEGIN
        IF told !~ '^[0-9]{4}-[0-9]{2}-[0-9]{2}T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]([.][0-9]{1,6})?[+]00:00$' THEN
            RAISE EXCEPTION 'not a time in UTC: %', told USING ERRCODE = 'invalid_datetime_format';
        END IF;
        RETURN told::timestamptz;
    END $$
    """,
    """
    CREATE FUNCTION muster_guard_node() RETURNS trigger
    LANGUAGE plpgsql SET search_path = {schema}, pg_temp AS $$
    DECLARE former text;
    DECLARE told text;
    DECLARE mine text := {schema}.muster_role();
    BEGIN
        IF NEW.ends IS NOT NULL THEN PERFORM {schema}.muster_moment(NEW.ends); END IF;
        -- from the last version there would be none to go on to
        IF TG_OP = 'INSERT' AND mine IS NOT NULL AND NEW.version <> 1 THEN
            RAISE EXCEPTION '% begins with version 1', NEW.name USING ERRCODE = 'insufficient_privilege';
        END IF;
        -- a list reads it as an integer, of every node at once
        IF coalesce(NEW.facts->>'vmid', '0') !~ '^[0-9]{1,9}$' THEN
            RAISE EXCEPTION 'not a VMID: %', NEW.facts->'vmid' USING ERRCODE = 'insufficient_privilege';
        END IF;
        IF TG_OP = 'UPDATE' THEN
            IF NEW.name <> OLD.name THEN
                RAISE EXCEPTION 'a node keeps its name' USING ERRCODE = 'insufficient_privilege';
            END IF;
            IF NEW.version <> OLD.version + 1 THEN
                RAISE EXCEPTION 'version % of % cannot follow %', NEW.version, NEW.name, OLD.version
                    USING ERRCODE = 'insufficient_privilege';
            END IF;
            -- with its uuid a node would lose its receipts and reports
            IF NEW.uuid IS DISTINCT FROM OLD.uuid AND mine IS NOT NULL
                AND NEW.state NOT IN ('planned', 'provisioning')
            THEN
                RAISE EXCEPTION '% is %, and keeps its uuid', NEW.name, NEW.state
                    USING ERRCODE = 'insufficient_privilege';
            END IF;
            IF NEW.reason IS DISTINCT FROM OLD.reason AND mine IS NOT NULL
                AND NOT EXISTS (SELECT FROM moves m WHERE m.after = NEW.state AND m.role = mine)
            THEN
                RAISE EXCEPTION '% is %, and its reason is not for the role % to give', NEW.name, NEW.state, mine
                    USING ERRCODE = 'insufficient_privilege';
            END IF;
            IF NEW.state = OLD.state THEN RETURN NEW; END IF;
            -- or a node would move on, and back to where its history ends, without a word
            SELECT e.after INTO told FROM events e WHERE e.node = NEW.name ORDER BY e.id DESC LIMIT 1;
            IF told IS DISTINCT FROM OLD.state THEN
                RAISE EXCEPTION '% is %, and its history ends with %', NEW.name, OLD.state, coalesce(told, 'nothing')
                    USING ERRCODE = 'insufficient_privilege';
            END IF;
            former := OLD.state;
        END IF;
        IF NOT {schema}.muster_may(former, NEW.state) THEN
            RAISE EXCEPTION '% may not become % from % by a login of the role %',
                NEW.name, NEW.state, coalesce(former, 'nothing'), coalesce(mine, 'owner')
                USING ERRCODE = 'insufficient_privilege';
        END IF;
        RETURN NEW;
    END $$
    """,
    """
    CREATE FUNCTION muster_guard_event() RETURNS trigger
    LANGUAGE plpgsql SET search_path = {schema}, pg_temp AS $$
    DECLARE last text;
    DECLARE last_id bigint;
    DECLARE stands text;
    BEGIN
        NEW.role := {schema}.muster_role();
        NEW.db_user := session_user;
        NEW.recorded_at := clock_timestamp();
        PERFORM {schema}.muster_moment(NEW.at);
        -- one writer after the other, so that none judges by a history that another is about to go on with
        SELECT n.state INTO stands FROM nodes n WHERE n.name = NEW.node FOR NO KEY UPDATE;
        SELECT e.after, e.id INTO last, last_id FROM events e WHERE e.node = NEW.node ORDER BY e.id DESC LIMIT 1;
        -- its number was drawn before it had to wait for the other
        IF NEW.id <= last_id THEN NEW.id := nextval('{schema}.events_id_seq'); END IF;
        IF NEW.before IS DISTINCT FROM last THEN
            RAISE EXCEPTION 'the history of % ends with %, and an event from % cannot follow',
                NEW.node, coalesce(last, 'nothing'), coalesce(NEW.before, 'nothing')
                USING ERRCODE = 'insufficient_privilege';
        END IF;
        -- first the move, then its event: who tells of a road there and back must have walked it
        IF NEW.after IS DISTINCT FROM stands THEN
            RAISE EXCEPTION '% is %, and no event can say that it is %',
                NEW.node, coalesce(stands, 'not on record'), NEW.after USING ERRCODE = 'insufficient_privilege';
        END IF;
        IF NEW.after IS DISTINCT FROM NEW.before AND NOT {schema}.muster_may(NEW.before, NEW.after) THEN
            RAISE EXCEPTION '% may not become % from % by a login of the role %',
                NEW.node, NEW.after, coalesce(NEW.before, 'nothing'), coalesce(NEW.role, 'owner')
                USING ERRCODE = 'insufficient_privilege';
        END IF;
        RETURN NEW;
    END $$
    """,
    # At the end of each transaction: no move without its event, and no event without its move.
    """
    CREATE FUNCTION muster_agree() RETURNS trigger
    LANGUAGE plpgsql SET search_path = {schema}, pg_temp AS $$
    DECLARE whose text; stands text; told text;
    BEGIN
        IF TG_TABLE_NAME = 'nodes' THEN whose := NEW.name; ELSE whose := NEW.node; END IF;
        SELECT n.state INTO stands FROM nodes n WHERE n.name = whose;
        SELECT e.after INTO told FROM events e WHERE e.node = whose ORDER BY e.id DESC LIMIT 1;
        IF stands IS DISTINCT FROM told THEN
            RAISE EXCEPTION '% is % and its history ends with %',
                whose, coalesce(stands, 'not on record'), coalesce(told, 'nothing')
                USING ERRCODE = 'insufficient_privilege';
        END IF;
        RETURN NULL;
    END $$
    """,
    """
    CREATE FUNCTION muster_stamp() RETURNS trigger LANGUAGE plpgsql SET search_path = {schema}, pg_temp AS $$
    BEGIN
        NEW.db_user := session_user;
        NEW.recorded_at := clock_timestamp();
        PERFORM {schema}.muster_moment(NEW.at);
        IF TG_TABLE_NAME = 'receipts' THEN
            IF NEW.until IS NOT NULL THEN PERFORM {schema}.muster_moment(NEW.until); END IF;
        END IF;
        RETURN NEW;
    END $$
    """,
    # A lease of the other role is left alone until it has run out, and of whoever has no role, or both, no less.
    """
    CREATE FUNCTION muster_guard_lease() RETURNS trigger
    LANGUAGE plpgsql SET search_path = {schema}, pg_temp AS $$
    DECLARE mine text := {schema}.muster_role();
    DECLARE here float8 := extract(epoch FROM clock_timestamp());
    BEGIN
        IF TG_OP <> 'INSERT' THEN
            IF mine IS NOT NULL AND OLD.role IS DISTINCT FROM mine AND OLD.expires > here THEN
                RAISE EXCEPTION 'the lease on % is of the role %', OLD.node, coalesce(OLD.role, 'owner')
                    USING ERRCODE = 'insufficient_privilege';
            END IF;
            IF TG_OP = 'DELETE' THEN RETURN OLD; END IF;
        END IF;
        NEW.role := mine;
        NEW.taken := here;
        IF TG_OP = 'UPDATE' AND NEW.token = OLD.token THEN NEW.taken := OLD.taken; END IF;
        -- no run keeps a node for long without a word, whatever it asks for
        NEW.expires := least(greatest(NEW.expires, here), here + 3600);
        RETURN NEW;
    END $$
    """,
    # What every reader relies on, whoever wrote it
    "ALTER TABLE nodes ADD CONSTRAINT name_is_a_label CHECK (name ~ '^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$')",
    (
        "ALTER TABLE nodes ADD CONSTRAINT facts_are_facts CHECK (jsonb_typeof(facts) = 'object'"
        " AND coalesce(jsonb_typeof(facts->'vmid'), 'null') IN ('number', 'null'))"
    ),
    "ALTER TABLE reports ADD CONSTRAINT document_is_one CHECK (jsonb_typeof(document) = 'object')",
    "CREATE TRIGGER guard BEFORE INSERT OR UPDATE ON nodes FOR EACH ROW EXECUTE FUNCTION muster_guard_node()",
    "CREATE TRIGGER guard BEFORE INSERT ON events FOR EACH ROW EXECUTE FUNCTION muster_guard_event()",
    "CREATE TRIGGER stamp BEFORE INSERT ON receipts FOR EACH ROW EXECUTE FUNCTION muster_stamp()",
    "CREATE TRIGGER stamp BEFORE INSERT ON reports FOR EACH ROW EXECUTE FUNCTION muster_stamp()",
    (
        "CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON leases"
        " FOR EACH ROW EXECUTE FUNCTION muster_guard_lease()"
    ),
    (
        "CREATE CONSTRAINT TRIGGER agree AFTER INSERT OR UPDATE ON nodes DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW EXECUTE FUNCTION muster_agree()"
    ),
    (
        "CREATE CONSTRAINT TRIGGER agree AFTER INSERT ON events DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW EXECUTE FUNCTION muster_agree()"
    ),
)
