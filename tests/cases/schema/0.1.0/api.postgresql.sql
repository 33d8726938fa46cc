CREATE TABLE cells (
	id VARCHAR(36) NOT NULL, 
	name VARCHAR(255) NOT NULL, 
	database_url TEXT NOT NULL, 
	disabled BOOLEAN NOT NULL, 
	created_at VARCHAR(26) NOT NULL, 
	updated_at VARCHAR(26), 
	PRIMARY KEY (id), 
	UNIQUE (name)
)
-- next
CREATE TABLE resource_classes (
	name VARCHAR(255) NOT NULL, 
	created_at VARCHAR(26) NOT NULL, 
	updated_at VARCHAR(26), 
	PRIMARY KEY (name)
)
-- next
CREATE TABLE traits (
	name VARCHAR(255) NOT NULL, 
	created_at VARCHAR(26) NOT NULL, 
	updated_at VARCHAR(26), 
	PRIMARY KEY (name)
)
-- next
CREATE TABLE server_mappings (
	server_id VARCHAR(36) NOT NULL, 
	cell_id VARCHAR(36) NOT NULL, 
	project_id VARCHAR(255) NOT NULL, 
	created_at VARCHAR(26), 
	deleted BOOLEAN NOT NULL, 
	PRIMARY KEY (server_id)
)
-- next
CREATE INDEX server_mappings_project ON server_mappings (project_id)
-- next
CREATE TABLE allocations (
	consumer_id VARCHAR(36) NOT NULL, 
	host_id VARCHAR(36) NOT NULL, 
	server_id VARCHAR(36) NOT NULL, 
	vcpus INTEGER NOT NULL, 
	memory_mb INTEGER NOT NULL, 
	disk_gb INTEGER NOT NULL, 
	pcpus INTEGER NOT NULL, 
	devices TEXT NOT NULL, 
	resources TEXT NOT NULL, 
	places TEXT NOT NULL, 
	generation INTEGER NOT NULL, 
	owner TEXT, 
	created_at VARCHAR(26) NOT NULL, 
	updated_at VARCHAR(26), 
	PRIMARY KEY (consumer_id, host_id)
)
-- next
CREATE INDEX allocations_host ON allocations (host_id)
-- next
CREATE INDEX allocations_server ON allocations (server_id)
-- next
CREATE INDEX allocations_owned ON allocations (consumer_id) WHERE owner IS NOT NULL
-- next
CREATE INDEX allocations_devices ON allocations (consumer_id) WHERE devices <> '{}'
-- next
CREATE INDEX allocations_moves ON allocations (host_id) WHERE consumer_id <> server_id
-- next
CREATE TABLE fencings (
	host VARCHAR(255) NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	agent VARCHAR(255) NOT NULL, 
	requested_at VARCHAR(26) NOT NULL, 
	requested_by VARCHAR(255) NOT NULL, 
	attempt VARCHAR(36) NOT NULL, 
	busy_until VARCHAR(26), 
	ended_at VARCHAR(26), 
	confirmed_at VARCHAR(26), 
	message TEXT NOT NULL, 
	was_disabled BOOLEAN, 
	was_disabled_reason VARCHAR(255), 
	was_forced_down BOOLEAN, 
	PRIMARY KEY (host)
)
-- next
CREATE TABLE fencing_requests (
	host VARCHAR(255) NOT NULL, 
	id VARCHAR(36) NOT NULL, 
	fence BOOLEAN NOT NULL, 
	confirmed BOOLEAN NOT NULL, 
	requested_by VARCHAR(255) NOT NULL, 
	requested_at VARCHAR(26) NOT NULL, 
	ended_at VARCHAR(26), 
	error_code VARCHAR(255), 
	error TEXT, 
	PRIMARY KEY (host)
)
-- next
CREATE TABLE host_removals (
	host VARCHAR(255) NOT NULL, 
	noun VARCHAR(32) NOT NULL, 
	key VARCHAR(255) NOT NULL, 
	due BOOLEAN NOT NULL, 
	PRIMARY KEY (host, noun, key)
)
-- next
CREATE INDEX host_removals_due ON host_removals (due, host)
-- next
CREATE INDEX host_removals_thing ON host_removals (noun, key)
-- next
CREATE TABLE drains (
	host VARCHAR(255) NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	round INTEGER NOT NULL, 
	reason VARCHAR(255), 
	request_id VARCHAR(255) NOT NULL, 
	user_id VARCHAR(255), 
	project_id VARCHAR(255), 
	message TEXT, 
	started_at VARCHAR(26) NOT NULL, 
	finished_at VARCHAR(26), 
	PRIMARY KEY (host)
)
-- next
CREATE TABLE flavors (
	number BIGSERIAL NOT NULL, 
	id VARCHAR(255) NOT NULL, 
	name VARCHAR(255) NOT NULL, 
	vcpus INTEGER NOT NULL, 
	ram INTEGER NOT NULL, 
	disk INTEGER NOT NULL, 
	ephemeral INTEGER NOT NULL, 
	swap INTEGER NOT NULL, 
	rxtx_factor FLOAT NOT NULL, 
	is_public BOOLEAN NOT NULL, 
	description TEXT, 
	extra_specs TEXT NOT NULL, 
	created_at VARCHAR(26) NOT NULL, 
	updated_at VARCHAR(26), 
	PRIMARY KEY (number), 
	UNIQUE (id), 
	UNIQUE (name)
)
-- next
CREATE TABLE keypairs (
	number BIGSERIAL NOT NULL, 
	user_id VARCHAR(255) NOT NULL, 
	name VARCHAR(255) NOT NULL, 
	type VARCHAR(16) NOT NULL, 
	fingerprint VARCHAR(255) NOT NULL, 
	public_key TEXT NOT NULL, 
	created_at VARCHAR(26) NOT NULL, 
	updated_at VARCHAR(26), 
	PRIMARY KEY (number), 
	UNIQUE (user_id, name)
)
-- next
CREATE TABLE aggregates (
	id SERIAL NOT NULL, 
	uuid VARCHAR(36) NOT NULL, 
	name VARCHAR(255) NOT NULL, 
	metadata TEXT NOT NULL, 
	created_at VARCHAR(26) NOT NULL, 
	updated_at VARCHAR(26), 
	PRIMARY KEY (id), 
	UNIQUE (uuid), 
	UNIQUE (name)
)
-- next
CREATE TABLE server_groups (
	id VARCHAR(36) NOT NULL, 
	name VARCHAR(255) NOT NULL, 
	project_id VARCHAR(255) NOT NULL, 
	user_id VARCHAR(255) NOT NULL, 
	policy VARCHAR(32) NOT NULL, 
	rules TEXT NOT NULL, 
	created_at VARCHAR(26) NOT NULL, 
	updated_at VARCHAR(26), 
	PRIMARY KEY (id)
)
-- next
CREATE INDEX server_groups_created ON server_groups (created_at, id)
-- next
CREATE INDEX server_groups_project ON server_groups (project_id, created_at, id)
-- next
CREATE TABLE quotas (
	project_id VARCHAR(255) NOT NULL, 
	resource VARCHAR(255) NOT NULL, 
	"limit" INTEGER NOT NULL, 
	PRIMARY KEY (project_id, resource)
)
-- next
CREATE TABLE api_notifications (
	id BIGSERIAL NOT NULL, 
	receiver VARCHAR(255) NOT NULL, 
	message_id VARCHAR(36) NOT NULL, 
	event_type VARCHAR(255) NOT NULL, 
	created_at VARCHAR(26) NOT NULL, 
	message TEXT NOT NULL, 
	PRIMARY KEY (id), 
	UNIQUE (message_id, receiver)
)
-- next
CREATE INDEX api_notifications_receiver ON api_notifications (receiver, id)
-- next
CREATE TABLE api_notification_receivers (
	name VARCHAR(255) NOT NULL, 
	holder VARCHAR(255), 
	lease_until VARCHAR(26), 
	failures INTEGER NOT NULL, 
	not_before VARCHAR(26), 
	problem TEXT, 
	PRIMARY KEY (name)
)
-- next
CREATE TABLE identity_domains (
	id VARCHAR(64) NOT NULL, 
	extra TEXT NOT NULL, 
	created_at VARCHAR(26) NOT NULL, 
	updated_at VARCHAR(26), 
	enabled BOOLEAN NOT NULL, 
	epoch INTEGER NOT NULL, 
	name VARCHAR(255) NOT NULL, 
	description TEXT, 
	PRIMARY KEY (id), 
	UNIQUE (name)
)
-- next
CREATE TABLE identity_roles (
	id VARCHAR(64) NOT NULL, 
	extra TEXT NOT NULL, 
	created_at VARCHAR(26) NOT NULL, 
	updated_at VARCHAR(26), 
	name VARCHAR(255) NOT NULL, 
	domain_id VARCHAR(64), 
	description TEXT, 
	options TEXT NOT NULL, 
	PRIMARY KEY (id), 
	UNIQUE (name)
)
-- next
CREATE TABLE identity_login_failures (
	key VARCHAR(64) NOT NULL, 
	failures INTEGER NOT NULL, 
	last_at FLOAT NOT NULL, 
	PRIMARY KEY (key)
)
-- next
CREATE INDEX ix_identity_login_failures_last_at ON identity_login_failures (last_at)
-- next
CREATE TABLE identity_regions (
	id VARCHAR(64) NOT NULL, 
	extra TEXT NOT NULL, 
	created_at VARCHAR(26) NOT NULL, 
	updated_at VARCHAR(26), 
	description TEXT, 
	parent_region_id VARCHAR(64), 
	PRIMARY KEY (id)
)
-- next
CREATE TABLE identity_services (
	id VARCHAR(64) NOT NULL, 
	extra TEXT NOT NULL, 
	created_at VARCHAR(26) NOT NULL, 
	updated_at VARCHAR(26), 
	name VARCHAR(255), 
	type VARCHAR(255) NOT NULL, 
	description TEXT, 
	enabled BOOLEAN NOT NULL, 
	PRIMARY KEY (id)
)
-- next
CREATE TABLE identity_revocations (
	token_id VARCHAR(64) NOT NULL, 
	expires FLOAT NOT NULL, 
	PRIMARY KEY (token_id)
)
-- next
CREATE TABLE identity_keys (
	id VARCHAR(64) NOT NULL, 
	secret TEXT NOT NULL, 
	created_at VARCHAR(26) NOT NULL, 
	PRIMARY KEY (id)
)
-- next
CREATE TABLE identity_revision (
	id SERIAL NOT NULL, 
	number INTEGER NOT NULL, 
	PRIMARY KEY (id)
)
-- next
CREATE TABLE images (
	id VARCHAR(36) NOT NULL, 
	name VARCHAR(255), 
	status VARCHAR(16) NOT NULL, 
	visibility VARCHAR(16) NOT NULL, 
	owner VARCHAR(255), 
	size BIGINT, 
	virtual_size BIGINT, 
	disk_format VARCHAR(16), 
	container_format VARCHAR(16), 
	min_disk INTEGER NOT NULL, 
	min_ram INTEGER NOT NULL, 
	checksum VARCHAR(32), 
	os_hash_value VARCHAR(128), 
	protected BOOLEAN NOT NULL, 
	os_hidden BOOLEAN NOT NULL, 
	properties TEXT NOT NULL, 
	why TEXT, 
	created_at VARCHAR(26) NOT NULL, 
	updated_at VARCHAR(26), 
	PRIMARY KEY (id)
)
-- next
CREATE INDEX images_created ON images (created_at, id)
-- next
CREATE INDEX images_owner ON images (owner, created_at)
-- next
CREATE TABLE image_uploads (
	image_id VARCHAR(36) NOT NULL, 
	size BIGINT NOT NULL, 
	PRIMARY KEY (image_id)
)
-- next
CREATE TABLE deleted_images (
	id VARCHAR(36) NOT NULL, 
	deleted_at VARCHAR(26) NOT NULL, 
	PRIMARY KEY (id)
)
-- next
CREATE TABLE qos_policies (
	id VARCHAR(36) NOT NULL, 
	project_id VARCHAR(255) NOT NULL, 
	name VARCHAR(255) NOT NULL, 
	description VARCHAR(255) NOT NULL, 
	tags TEXT NOT NULL, 
	shared BOOLEAN NOT NULL, 
	is_default BOOLEAN NOT NULL, 
	created_at VARCHAR(26) NOT NULL, 
	updated_at VARCHAR(26), 
	PRIMARY KEY (id)
)
-- next
CREATE INDEX qos_policies_project ON qos_policies (project_id, created_at, id)
-- next
CREATE INDEX qos_policies_created ON qos_policies (created_at, id)
-- next
CREATE TABLE address_scopes (
	id VARCHAR(36) NOT NULL, 
	project_id VARCHAR(255) NOT NULL, 
	name VARCHAR(255) NOT NULL, 
	description VARCHAR(255) NOT NULL, 
	tags TEXT NOT NULL, 
	ip_version INTEGER NOT NULL, 
	shared BOOLEAN NOT NULL, 
	created_at VARCHAR(26) NOT NULL, 
	updated_at VARCHAR(26), 
	PRIMARY KEY (id)
)
-- next
CREATE INDEX address_scopes_created ON address_scopes (created_at, id)
-- next
CREATE INDEX address_scopes_project ON address_scopes (project_id, created_at, id)
-- next
CREATE TABLE security_groups (
	id VARCHAR(36) NOT NULL, 
	project_id VARCHAR(255) NOT NULL, 
	name VARCHAR(255) NOT NULL, 
	description VARCHAR(255) NOT NULL, 
	tags TEXT NOT NULL, 
	stateful BOOLEAN NOT NULL, 
	revision BIGINT NOT NULL, 
	created_at VARCHAR(26) NOT NULL, 
	updated_at VARCHAR(26), 
	PRIMARY KEY (id)
)
-- next
CREATE INDEX security_groups_created ON security_groups (created_at, id)
-- next
CREATE INDEX security_groups_project ON security_groups (project_id, created_at, id)
-- next
CREATE TABLE security_group_hosts (
	group_id VARCHAR(36) NOT NULL, 
	host VARCHAR(255) NOT NULL, 
	due BOOLEAN, 
	PRIMARY KEY (group_id, host)
)
-- next
CREATE INDEX security_group_hosts_due ON security_group_hosts (due, host)
-- next
CREATE TABLE address_groups (
	id VARCHAR(36) NOT NULL, 
	project_id VARCHAR(255) NOT NULL, 
	name VARCHAR(255) NOT NULL, 
	description VARCHAR(255) NOT NULL, 
	tags TEXT NOT NULL, 
	addresses TEXT NOT NULL, 
	created_at VARCHAR(26) NOT NULL, 
	updated_at VARCHAR(26), 
	PRIMARY KEY (id)
)
-- next
CREATE INDEX address_groups_project ON address_groups (project_id, created_at, id)
-- next
CREATE INDEX address_groups_created ON address_groups (created_at, id)
-- next
CREATE TABLE network_beginnings (
	name VARCHAR(255) NOT NULL, 
	created_at VARCHAR(26) NOT NULL, 
	updated_at VARCHAR(26), 
	PRIMARY KEY (name)
)
-- next
CREATE TABLE routers (
	id VARCHAR(36) NOT NULL, 
	project_id VARCHAR(255) NOT NULL, 
	name VARCHAR(255) NOT NULL, 
	description VARCHAR(255) NOT NULL, 
	tags TEXT NOT NULL, 
	admin_state_up BOOLEAN NOT NULL, 
	enable_snat BOOLEAN NOT NULL, 
	routes TEXT NOT NULL, 
	created_at VARCHAR(26) NOT NULL, 
	updated_at VARCHAR(26), 
	PRIMARY KEY (id)
)
-- next
CREATE INDEX routers_created ON routers (created_at, id)
-- next
CREATE INDEX routers_project ON routers (project_id, created_at, id)
-- next
CREATE TABLE rbac_policies (
	id VARCHAR(36) NOT NULL, 
	project_id VARCHAR(255) NOT NULL, 
	object_type VARCHAR(32) NOT NULL, 
	object_id VARCHAR(36) NOT NULL, 
	action VARCHAR(32) NOT NULL, 
	target_project VARCHAR(255) NOT NULL, 
	created_at VARCHAR(26) NOT NULL, 
	updated_at VARCHAR(26), 
	PRIMARY KEY (id)
)
-- next
CREATE INDEX rbac_policies_project ON rbac_policies (project_id, created_at, id)
-- next
CREATE INDEX rbac_policies_created ON rbac_policies (created_at, id)
-- next
CREATE INDEX rbac_policies_target ON rbac_policies (target_project, action, object_id)
-- next
CREATE UNIQUE INDEX rbac_policies_object ON rbac_policies (object_id, action, target_project)
-- next
CREATE TABLE network_changes (
	id VARCHAR(36) NOT NULL, 
	unit VARCHAR(64) NOT NULL, 
	PRIMARY KEY (id)
)
-- next
CREATE INDEX network_changes_unit ON network_changes (unit)
-- next
CREATE TABLE network_engine (
	id INTEGER NOT NULL, 
	number BIGINT NOT NULL, 
	PRIMARY KEY (id)
)
-- next
CREATE TABLE volume_types (
	id VARCHAR(36) NOT NULL, 
	name VARCHAR(255) NOT NULL, 
	description VARCHAR(255), 
	is_public BOOLEAN NOT NULL, 
	extra_specs TEXT NOT NULL, 
	encryption TEXT, 
	created_at VARCHAR(26) NOT NULL, 
	updated_at VARCHAR(26), 
	PRIMARY KEY (id), 
	UNIQUE (name)
)
-- next
CREATE TABLE pools (
	id VARCHAR(36) NOT NULL, 
	identity TEXT NOT NULL, 
	kind VARCHAR(16) NOT NULL, 
	shared BOOLEAN NOT NULL, 
	total_gb INTEGER, 
	free_gb INTEGER, 
	created_at VARCHAR(26) NOT NULL, 
	updated_at VARCHAR(26), 
	PRIMARY KEY (id), 
	UNIQUE (identity)
)
-- next
CREATE TABLE volumes (
	id VARCHAR(36) NOT NULL, 
	project_id VARCHAR(255) NOT NULL, 
	user_id VARCHAR(255) NOT NULL, 
	name VARCHAR(255), 
	description VARCHAR(255), 
	size INTEGER NOT NULL, 
	status VARCHAR(32) NOT NULL, 
	host VARCHAR(255), 
	metadata TEXT NOT NULL, 
	task VARCHAR(16), 
	holder VARCHAR(36), 
	lease_until VARCHAR(26), 
	not_before VARCHAR(26), 
	attempts INTEGER NOT NULL, 
	fault TEXT, 
	created_at VARCHAR(26) NOT NULL, 
	updated_at VARCHAR(26), 
	volume_type VARCHAR(255) NOT NULL, 
	pool_id VARCHAR(36), 
	pool VARCHAR(255), 
	encryption_key_id VARCHAR(36), 
	availability_zone VARCHAR(255) NOT NULL, 
	bootable BOOLEAN NOT NULL, 
	multiattach BOOLEAN NOT NULL, 
	readonly BOOLEAN NOT NULL, 
	image_metadata TEXT NOT NULL, 
	image_id VARCHAR(36), 
	snapshot_id VARCHAR(36), 
	source_volid VARCHAR(36), 
	new_size INTEGER, 
	previous_status VARCHAR(32), 
	reimage TEXT, 
	upload TEXT, 
	existing TEXT, 
	migration TEXT, 
	migration_status VARCHAR(16), 
	PRIMARY KEY (id)
)
-- next
CREATE INDEX volumes_created ON volumes (created_at, id)
-- next
CREATE INDEX volumes_host ON volumes (host)
-- next
CREATE INDEX volumes_pool ON volumes (pool_id)
-- next
CREATE INDEX volumes_task ON volumes (task)
-- next
CREATE INDEX volumes_project ON volumes (project_id, created_at, id)
-- next
CREATE TABLE volume_snapshots (
	id VARCHAR(36) NOT NULL, 
	project_id VARCHAR(255) NOT NULL, 
	user_id VARCHAR(255) NOT NULL, 
	name VARCHAR(255), 
	description VARCHAR(255), 
	size INTEGER NOT NULL, 
	status VARCHAR(32) NOT NULL, 
	host VARCHAR(255), 
	metadata TEXT NOT NULL, 
	task VARCHAR(16), 
	holder VARCHAR(36), 
	lease_until VARCHAR(26), 
	not_before VARCHAR(26), 
	attempts INTEGER NOT NULL, 
	fault TEXT, 
	created_at VARCHAR(26) NOT NULL, 
	updated_at VARCHAR(26), 
	volume_id VARCHAR(36) NOT NULL, 
	bootable BOOLEAN NOT NULL, 
	volume_type VARCHAR(255) NOT NULL, 
	image_metadata TEXT, 
	PRIMARY KEY (id)
)
-- next
CREATE INDEX volume_snapshots_task ON volume_snapshots (task)
-- next
CREATE INDEX volume_snapshots_project ON volume_snapshots (project_id, created_at, id)
-- next
CREATE INDEX volume_snapshots_volume ON volume_snapshots (volume_id)
-- next
CREATE INDEX volume_snapshots_created ON volume_snapshots (created_at, id)
-- next
CREATE TABLE volume_backups (
	id VARCHAR(36) NOT NULL, 
	project_id VARCHAR(255) NOT NULL, 
	user_id VARCHAR(255) NOT NULL, 
	name VARCHAR(255), 
	description VARCHAR(255), 
	size INTEGER NOT NULL, 
	status VARCHAR(32) NOT NULL, 
	host VARCHAR(255), 
	metadata TEXT NOT NULL, 
	task VARCHAR(16), 
	holder VARCHAR(36), 
	lease_until VARCHAR(26), 
	not_before VARCHAR(26), 
	attempts INTEGER NOT NULL, 
	fault TEXT, 
	created_at VARCHAR(26) NOT NULL, 
	updated_at VARCHAR(26), 
	volume_id VARCHAR(36) NOT NULL, 
	snapshot_id VARCHAR(36), 
	parent_id VARCHAR(36), 
	target_id VARCHAR(36), 
	container VARCHAR(255), 
	object_count INTEGER NOT NULL, 
	checksum VARCHAR(64), 
	data_timestamp VARCHAR(26) NOT NULL, 
	volume_type VARCHAR(255), 
	bootable BOOLEAN NOT NULL, 
	image_metadata TEXT NOT NULL, 
	restore TEXT, 
	PRIMARY KEY (id)
)
-- next
CREATE INDEX volume_backups_parent ON volume_backups (parent_id)
-- next
CREATE INDEX volume_backups_project ON volume_backups (project_id, created_at, id)
-- next
CREATE INDEX volume_backups_task ON volume_backups (task)
-- next
CREATE INDEX volume_backups_volume ON volume_backups (volume_id)
-- next
CREATE INDEX volume_backups_created ON volume_backups (created_at, id)
-- next
CREATE TABLE hosts (
	id VARCHAR(36) NOT NULL, 
	name VARCHAR(255) NOT NULL, 
	number INTEGER NOT NULL, 
	cell_id VARCHAR(36) NOT NULL, 
	endpoint TEXT NOT NULL, 
	disabled BOOLEAN NOT NULL, 
	disabled_reason VARCHAR(255), 
	forced_down BOOLEAN NOT NULL, 
	vcpus INTEGER NOT NULL, 
	memory_mb INTEGER NOT NULL, 
	disk_gb INTEGER NOT NULL, 
	pcpus INTEGER NOT NULL, 
	vcpus_reserved INTEGER NOT NULL, 
	memory_mb_reserved INTEGER NOT NULL, 
	disk_gb_reserved INTEGER NOT NULL, 
	pcpus_reserved INTEGER NOT NULL, 
	vcpus_used INTEGER NOT NULL, 
	memory_mb_used INTEGER NOT NULL, 
	disk_gb_used INTEGER NOT NULL, 
	pcpus_used INTEGER NOT NULL, 
	vcpus_limit INTEGER NOT NULL, 
	memory_mb_limit INTEGER NOT NULL, 
	disk_gb_limit INTEGER NOT NULL, 
	pcpus_limit INTEGER NOT NULL, 
	vcpus_ratio FLOAT, 
	memory_mb_ratio FLOAT, 
	disk_gb_ratio FLOAT, 
	vcpus_own_reserved INTEGER, 
	memory_mb_own_reserved INTEGER, 
	disk_gb_own_reserved INTEGER, 
	pcpus_own_reserved INTEGER, 
	own_traits TEXT NOT NULL, 
	servers INTEGER NOT NULL, 
	disk_gb_free INTEGER, 
	info TEXT NOT NULL, 
	pci_aliases TEXT NOT NULL, 
	generation INTEGER NOT NULL, 
	created_at VARCHAR(26) NOT NULL, 
	updated_at VARCHAR(26), 
	PRIMARY KEY (id), 
	UNIQUE (name), 
	UNIQUE (number), 
	FOREIGN KEY(cell_id) REFERENCES cells (id)
)
-- next
CREATE TABLE flavor_projects (
	flavor_number BIGINT NOT NULL, 
	project_id VARCHAR(255) NOT NULL, 
	PRIMARY KEY (flavor_number, project_id), 
	FOREIGN KEY(flavor_number) REFERENCES flavors (number) ON DELETE CASCADE
)
-- next
CREATE INDEX flavor_projects_project ON flavor_projects (project_id)
-- next
CREATE TABLE aggregate_hosts (
	aggregate_id INTEGER NOT NULL, 
	host VARCHAR(255) NOT NULL, 
	PRIMARY KEY (aggregate_id, host), 
	FOREIGN KEY(aggregate_id) REFERENCES aggregates (id) ON DELETE CASCADE
)
-- next
CREATE TABLE server_group_members (
	group_id VARCHAR(36) NOT NULL, 
	server_id VARCHAR(36) NOT NULL, 
	PRIMARY KEY (group_id, server_id), 
	FOREIGN KEY(group_id) REFERENCES server_groups (id) ON DELETE CASCADE
)
-- next
CREATE INDEX server_group_members_server ON server_group_members (server_id)
-- next
CREATE TABLE identity_projects (
	id VARCHAR(64) NOT NULL, 
	extra TEXT NOT NULL, 
	created_at VARCHAR(26) NOT NULL, 
	updated_at VARCHAR(26), 
	enabled BOOLEAN NOT NULL, 
	epoch INTEGER NOT NULL, 
	domain_id VARCHAR(64) NOT NULL, 
	name VARCHAR(255) NOT NULL, 
	description TEXT, 
	parent_id VARCHAR(64), 
	tags TEXT NOT NULL, 
	options TEXT NOT NULL, 
	PRIMARY KEY (id), 
	UNIQUE (domain_id, name), 
	FOREIGN KEY(domain_id) REFERENCES identity_domains (id)
)
-- next
CREATE TABLE identity_users (
	id VARCHAR(64) NOT NULL, 
	extra TEXT NOT NULL, 
	created_at VARCHAR(26) NOT NULL, 
	updated_at VARCHAR(26), 
	enabled BOOLEAN NOT NULL, 
	epoch INTEGER NOT NULL, 
	domain_id VARCHAR(64) NOT NULL, 
	name VARCHAR(255) NOT NULL, 
	password TEXT, 
	description TEXT, 
	email TEXT, 
	default_project_id VARCHAR(64), 
	options TEXT NOT NULL, 
	PRIMARY KEY (id), 
	UNIQUE (domain_id, name), 
	FOREIGN KEY(domain_id) REFERENCES identity_domains (id)
)
-- next
CREATE TABLE identity_groups (
	id VARCHAR(64) NOT NULL, 
	extra TEXT NOT NULL, 
	created_at VARCHAR(26) NOT NULL, 
	updated_at VARCHAR(26), 
	domain_id VARCHAR(64) NOT NULL, 
	name VARCHAR(255) NOT NULL, 
	description TEXT, 
	PRIMARY KEY (id), 
	UNIQUE (domain_id, name), 
	FOREIGN KEY(domain_id) REFERENCES identity_domains (id)
)
-- next
CREATE TABLE identity_implications (
	prior_id VARCHAR(64) NOT NULL, 
	implied_id VARCHAR(64) NOT NULL, 
	PRIMARY KEY (prior_id, implied_id), 
	FOREIGN KEY(prior_id) REFERENCES identity_roles (id) ON DELETE CASCADE, 
	FOREIGN KEY(implied_id) REFERENCES identity_roles (id) ON DELETE CASCADE
)
-- next
CREATE TABLE identity_assignments (
	target VARCHAR(8) NOT NULL, 
	target_id VARCHAR(64) NOT NULL, 
	actor VARCHAR(8) NOT NULL, 
	actor_id VARCHAR(64) NOT NULL, 
	role_id VARCHAR(64) NOT NULL, 
	PRIMARY KEY (target, target_id, actor, actor_id, role_id), 
	FOREIGN KEY(role_id) REFERENCES identity_roles (id) ON DELETE CASCADE
)
-- next
CREATE INDEX identity_assignments_actor ON identity_assignments (actor_id)
-- next
CREATE TABLE identity_endpoints (
	id VARCHAR(64) NOT NULL, 
	extra TEXT NOT NULL, 
	created_at VARCHAR(26) NOT NULL, 
	updated_at VARCHAR(26), 
	service_id VARCHAR(64) NOT NULL, 
	interface VARCHAR(8) NOT NULL, 
	region_id VARCHAR(64), 
	url TEXT NOT NULL, 
	enabled BOOLEAN NOT NULL, 
	follows TEXT, 
	name VARCHAR(255), 
	PRIMARY KEY (id), 
	FOREIGN KEY(service_id) REFERENCES identity_services (id) ON DELETE CASCADE
)
-- next
CREATE TABLE image_members (
	image_id VARCHAR(36) NOT NULL, 
	member VARCHAR(255) NOT NULL, 
	status VARCHAR(8) NOT NULL, 
	created_at VARCHAR(26) NOT NULL, 
	updated_at VARCHAR(26), 
	PRIMARY KEY (image_id, member), 
	FOREIGN KEY(image_id) REFERENCES images (id) ON DELETE CASCADE
)
-- next
CREATE INDEX image_members_member ON image_members (member, status)
-- next
CREATE TABLE image_tags (
	image_id VARCHAR(36) NOT NULL, 
	tag VARCHAR(255) NOT NULL, 
	PRIMARY KEY (image_id, tag), 
	FOREIGN KEY(image_id) REFERENCES images (id) ON DELETE CASCADE
)
-- next
CREATE TABLE qos_rules (
	id VARCHAR(36) NOT NULL, 
	project_id VARCHAR(255) NOT NULL, 
	policy_id VARCHAR(36) NOT NULL, 
	kind VARCHAR(32) NOT NULL, 
	direction VARCHAR(8) NOT NULL, 
	max_kbps BIGINT, 
	max_burst_kbps BIGINT, 
	dscp_mark INTEGER, 
	min_kbps BIGINT, 
	created_at VARCHAR(26) NOT NULL, 
	updated_at VARCHAR(26), 
	PRIMARY KEY (id), 
	FOREIGN KEY(policy_id) REFERENCES qos_policies (id) ON DELETE CASCADE
)
-- next
CREATE UNIQUE INDEX qos_rules_policy ON qos_rules (policy_id, kind, direction)
-- next
CREATE TABLE networks (
	id VARCHAR(36) NOT NULL, 
	project_id VARCHAR(255) NOT NULL, 
	name VARCHAR(255) NOT NULL, 
	description VARCHAR(255) NOT NULL, 
	tags TEXT NOT NULL, 
	admin_state_up BOOLEAN NOT NULL, 
	shared BOOLEAN NOT NULL, 
	is_default BOOLEAN NOT NULL, 
	type VARCHAR(16) NOT NULL, 
	bridge VARCHAR(255), 
	segment INTEGER, 
	by_engine BOOLEAN NOT NULL, 
	external BOOLEAN NOT NULL, 
	mtu INTEGER NOT NULL, 
	dns_domain VARCHAR(255) NOT NULL, 
	port_security_enabled BOOLEAN NOT NULL, 
	qos_policy_id VARCHAR(36), 
	created_at VARCHAR(26) NOT NULL, 
	updated_at VARCHAR(26), 
	PRIMARY KEY (id), 
	FOREIGN KEY(qos_policy_id) REFERENCES qos_policies (id)
)
-- next
CREATE INDEX networks_created ON networks (created_at, id)
-- next
CREATE INDEX networks_project ON networks (project_id, created_at, id)
-- next
CREATE INDEX networks_qos ON networks (qos_policy_id)
-- next
CREATE TABLE subnet_pools (
	id VARCHAR(36) NOT NULL, 
	project_id VARCHAR(255) NOT NULL, 
	name VARCHAR(255) NOT NULL, 
	description VARCHAR(255) NOT NULL, 
	tags TEXT NOT NULL, 
	ip_version INTEGER NOT NULL, 
	prefixes TEXT NOT NULL, 
	min_prefixlen INTEGER NOT NULL, 
	default_prefixlen INTEGER NOT NULL, 
	max_prefixlen INTEGER NOT NULL, 
	default_quota BIGINT, 
	shared BOOLEAN NOT NULL, 
	is_default BOOLEAN NOT NULL, 
	address_scope_id VARCHAR(36), 
	created_at VARCHAR(26) NOT NULL, 
	updated_at VARCHAR(26), 
	PRIMARY KEY (id), 
	FOREIGN KEY(address_scope_id) REFERENCES address_scopes (id)
)
-- next
CREATE INDEX subnet_pools_scope ON subnet_pools (address_scope_id)
-- next
CREATE INDEX subnet_pools_created ON subnet_pools (created_at, id)
-- next
CREATE INDEX subnet_pools_project ON subnet_pools (project_id, created_at, id)
-- next
CREATE TABLE security_group_rules (
	id VARCHAR(36) NOT NULL, 
	project_id VARCHAR(255) NOT NULL, 
	security_group_id VARCHAR(36) NOT NULL, 
	direction VARCHAR(8) NOT NULL, 
	ethertype VARCHAR(4) NOT NULL, 
	protocol VARCHAR(40), 
	port_range_min INTEGER, 
	port_range_max INTEGER, 
	remote_ip_prefix VARCHAR(43), 
	remote_group_id VARCHAR(36), 
	description TEXT, 
	remote_address_group_id VARCHAR(36), 
	created_at VARCHAR(26) NOT NULL, 
	updated_at VARCHAR(26), 
	PRIMARY KEY (id), 
	FOREIGN KEY(security_group_id) REFERENCES security_groups (id) ON DELETE CASCADE, 
	FOREIGN KEY(remote_address_group_id) REFERENCES address_groups (id)
)
-- next
CREATE INDEX security_group_rules_group ON security_group_rules (security_group_id)
-- next
CREATE INDEX security_group_rules_project ON security_group_rules (project_id, created_at, id)
-- next
CREATE INDEX security_group_rules_created ON security_group_rules (created_at, id)
-- next
CREATE TABLE default_security_group_rules (
	id VARCHAR(36) NOT NULL, 
	direction VARCHAR(8) NOT NULL, 
	ethertype VARCHAR(4) NOT NULL, 
	protocol VARCHAR(40), 
	port_range_min INTEGER, 
	port_range_max INTEGER, 
	remote_ip_prefix VARCHAR(43), 
	remote_group_id VARCHAR(36), 
	description VARCHAR(255) NOT NULL, 
	remote_address_group_id VARCHAR(36), 
	used_in_default_sg BOOLEAN NOT NULL, 
	used_in_non_default_sg BOOLEAN NOT NULL, 
	created_at VARCHAR(26) NOT NULL, 
	updated_at VARCHAR(26), 
	PRIMARY KEY (id), 
	FOREIGN KEY(remote_address_group_id) REFERENCES address_groups (id)
)
-- next
CREATE TABLE volume_type_projects (
	type_id VARCHAR(36) NOT NULL, 
	project_id VARCHAR(255) NOT NULL, 
	PRIMARY KEY (type_id, project_id), 
	FOREIGN KEY(type_id) REFERENCES volume_types (id) ON DELETE CASCADE
)
-- next
CREATE TABLE volume_attachments (
	id VARCHAR(36) NOT NULL, 
	volume_id VARCHAR(36) NOT NULL, 
	project_id VARCHAR(255) NOT NULL, 
	server_id VARCHAR(36), 
	host VARCHAR(255), 
	device VARCHAR(255), 
	status VARCHAR(16) NOT NULL, 
	mode VARCHAR(4) NOT NULL, 
	connector TEXT, 
	attached_at VARCHAR(26), 
	created_at VARCHAR(26) NOT NULL, 
	updated_at VARCHAR(26), 
	PRIMARY KEY (id), 
	FOREIGN KEY(volume_id) REFERENCES volumes (id) ON DELETE CASCADE
)
-- next
CREATE INDEX volume_attachments_server ON volume_attachments (server_id)
-- next
CREATE INDEX volume_attachments_volume ON volume_attachments (volume_id)
-- next
CREATE TABLE volume_transfers (
	id VARCHAR(36) NOT NULL, 
	volume_id VARCHAR(36) NOT NULL, 
	project_id VARCHAR(255) NOT NULL, 
	name VARCHAR(255), 
	no_snapshots BOOLEAN NOT NULL, 
	salt VARCHAR(64) NOT NULL, 
	key_hash VARCHAR(64) NOT NULL, 
	created_at VARCHAR(26) NOT NULL, 
	updated_at VARCHAR(26), 
	PRIMARY KEY (id), 
	UNIQUE (volume_id), 
	FOREIGN KEY(volume_id) REFERENCES volumes (id) ON DELETE CASCADE
)
-- next
CREATE INDEX volume_transfers_project ON volume_transfers (project_id, created_at, id)
-- next
CREATE INDEX volume_transfers_created ON volume_transfers (created_at, id)
-- next
CREATE TABLE inventories (
	host_id VARCHAR(36) NOT NULL, 
	resource_class VARCHAR(255) NOT NULL, 
	told TEXT, 
	own TEXT, 
	"limit" BIGINT NOT NULL, 
	used BIGINT NOT NULL, 
	min_unit INTEGER NOT NULL, 
	max_unit INTEGER NOT NULL, 
	step_size INTEGER NOT NULL, 
	PRIMARY KEY (host_id, resource_class), 
	FOREIGN KEY(host_id) REFERENCES hosts (id) ON DELETE CASCADE
)
-- next
CREATE INDEX inventories_class ON inventories (resource_class)
-- next
CREATE TABLE identity_members (
	group_id VARCHAR(64) NOT NULL, 
	user_id VARCHAR(64) NOT NULL, 
	PRIMARY KEY (group_id, user_id), 
	FOREIGN KEY(group_id) REFERENCES identity_groups (id) ON DELETE CASCADE, 
	FOREIGN KEY(user_id) REFERENCES identity_users (id) ON DELETE CASCADE
)
-- next
CREATE INDEX identity_members_user ON identity_members (user_id)
-- next
CREATE TABLE identity_application_credentials (
	id VARCHAR(64) NOT NULL, 
	extra TEXT NOT NULL, 
	created_at VARCHAR(26) NOT NULL, 
	updated_at VARCHAR(26), 
	user_id VARCHAR(64) NOT NULL, 
	project_id VARCHAR(64) NOT NULL, 
	name VARCHAR(255) NOT NULL, 
	secret TEXT NOT NULL, 
	description TEXT, 
	roles TEXT NOT NULL, 
	unrestricted BOOLEAN NOT NULL, 
	expires_at VARCHAR(26), 
	PRIMARY KEY (id), 
	UNIQUE (user_id, name), 
	FOREIGN KEY(user_id) REFERENCES identity_users (id) ON DELETE CASCADE, 
	FOREIGN KEY(project_id) REFERENCES identity_projects (id) ON DELETE CASCADE
)
-- next
CREATE TABLE identity_trusts (
	id VARCHAR(64) NOT NULL, 
	extra TEXT NOT NULL, 
	created_at VARCHAR(26) NOT NULL, 
	updated_at VARCHAR(26), 
	trustor_user_id VARCHAR(64) NOT NULL, 
	trustee_user_id VARCHAR(64) NOT NULL, 
	project_id VARCHAR(64), 
	redelegated_trust_id VARCHAR(64), 
	impersonation BOOLEAN NOT NULL, 
	roles TEXT NOT NULL, 
	expires_at VARCHAR(26), 
	remaining_uses INTEGER, 
	redelegation_count INTEGER NOT NULL, 
	PRIMARY KEY (id), 
	UNIQUE (trustor_user_id, trustee_user_id, project_id, impersonation, expires_at), 
	FOREIGN KEY(trustor_user_id) REFERENCES identity_users (id) ON DELETE CASCADE, 
	FOREIGN KEY(trustee_user_id) REFERENCES identity_users (id) ON DELETE CASCADE, 
	FOREIGN KEY(project_id) REFERENCES identity_projects (id) ON DELETE CASCADE, 
	FOREIGN KEY(redelegated_trust_id) REFERENCES identity_trusts (id) ON DELETE CASCADE
)
-- next
CREATE INDEX ix_identity_trusts_trustee_user_id ON identity_trusts (trustee_user_id)
-- next
CREATE INDEX ix_identity_trusts_redelegated_trust_id ON identity_trusts (redelegated_trust_id)
-- next
CREATE INDEX ix_identity_trusts_project_id ON identity_trusts (project_id)
-- next
CREATE TABLE subnets (
	id VARCHAR(36) NOT NULL, 
	project_id VARCHAR(255) NOT NULL, 
	name VARCHAR(255) NOT NULL, 
	description VARCHAR(255) NOT NULL, 
	tags TEXT NOT NULL, 
	network_id VARCHAR(36) NOT NULL, 
	cidr VARCHAR(43) NOT NULL, 
	gateway_ip VARCHAR(45), 
	enable_dhcp BOOLEAN NOT NULL, 
	allocation_pools TEXT NOT NULL, 
	dns_nameservers TEXT NOT NULL, 
	host_routes TEXT NOT NULL, 
	ipv6_address_mode VARCHAR(16), 
	ipv6_ra_mode VARCHAR(16), 
	subnetpool_id VARCHAR(36), 
	created_at VARCHAR(26) NOT NULL, 
	updated_at VARCHAR(26), 
	PRIMARY KEY (id), 
	FOREIGN KEY(network_id) REFERENCES networks (id) ON DELETE CASCADE, 
	FOREIGN KEY(subnetpool_id) REFERENCES subnet_pools (id)
)
-- next
CREATE INDEX subnets_project ON subnets (project_id, created_at, id)
-- next
CREATE INDEX subnets_network ON subnets (network_id)
-- next
CREATE INDEX subnets_created ON subnets (created_at, id)
-- next
CREATE INDEX subnets_pool ON subnets (subnetpool_id)
-- next
CREATE TABLE ports (
	id VARCHAR(36) NOT NULL, 
	project_id VARCHAR(255) NOT NULL, 
	name VARCHAR(255) NOT NULL, 
	description VARCHAR(255) NOT NULL, 
	tags TEXT NOT NULL, 
	network_id VARCHAR(36) NOT NULL, 
	mac_address VARCHAR(17) NOT NULL, 
	admin_state_up BOOLEAN NOT NULL, 
	status VARCHAR(16) NOT NULL, 
	device_id VARCHAR(255) NOT NULL, 
	device_owner VARCHAR(255) NOT NULL, 
	host VARCHAR(255) NOT NULL, 
	vnic_type VARCHAR(32) NOT NULL, 
	profile TEXT NOT NULL, 
	security_groups TEXT NOT NULL, 
	port_security_enabled BOOLEAN NOT NULL, 
	made_for_server BOOLEAN NOT NULL, 
	place INTEGER, 
	tag VARCHAR(60), 
	pairs TEXT NOT NULL, 
	next_host VARCHAR(255) NOT NULL, 
	arriving BOOLEAN NOT NULL, 
	qos_policy_id VARCHAR(36), 
	dns_name VARCHAR(63) NOT NULL, 
	device TEXT NOT NULL, 
	groups_due BOOLEAN, 
	created_at VARCHAR(26) NOT NULL, 
	updated_at VARCHAR(26), 
	PRIMARY KEY (id), 
	FOREIGN KEY(network_id) REFERENCES networks (id), 
	UNIQUE (mac_address), 
	FOREIGN KEY(qos_policy_id) REFERENCES qos_policies (id)
)
-- next
CREATE INDEX ports_device ON ports (device_id)
-- next
CREATE INDEX ports_created ON ports (created_at, id)
-- next
CREATE INDEX ports_project ON ports (project_id, created_at, id)
-- next
CREATE INDEX ports_groups_due ON ports (groups_due, host)
-- next
CREATE INDEX ports_qos ON ports (qos_policy_id)
-- next
CREATE INDEX ports_network ON ports (network_id, created_at, id)
-- next
CREATE TABLE auto_topologies (
	project_id VARCHAR(255) NOT NULL, 
	network_id VARCHAR(36) NOT NULL, 
	router_id VARCHAR(36), 
	created_at VARCHAR(26) NOT NULL, 
	updated_at VARCHAR(26), 
	PRIMARY KEY (project_id), 
	FOREIGN KEY(network_id) REFERENCES networks (id) ON DELETE CASCADE, 
	FOREIGN KEY(router_id) REFERENCES routers (id) ON DELETE SET NULL
)
-- next
CREATE TABLE pool_hosts (
	host VARCHAR(255) NOT NULL, 
	name VARCHAR(255) NOT NULL, 
	pool_id VARCHAR(36) NOT NULL, 
	state VARCHAR(8) NOT NULL, 
	reason TEXT NOT NULL, 
	PRIMARY KEY (host, name), 
	FOREIGN KEY(host) REFERENCES hosts (name) ON DELETE CASCADE, 
	FOREIGN KEY(pool_id) REFERENCES pools (id) ON DELETE CASCADE
)
-- next
CREATE INDEX pool_hosts_pool ON pool_hosts (pool_id)
-- next
CREATE TABLE port_addresses (
	subnet_id VARCHAR(36) NOT NULL, 
	number BIGINT NOT NULL, 
	port_id VARCHAR(36) NOT NULL, 
	ip_address VARCHAR(45) NOT NULL, 
	PRIMARY KEY (subnet_id, number), 
	FOREIGN KEY(subnet_id) REFERENCES subnets (id), 
	FOREIGN KEY(port_id) REFERENCES ports (id) ON DELETE CASCADE
)
-- next
CREATE INDEX port_addresses_port ON port_addresses (port_id)
-- next
CREATE INDEX port_addresses_ip ON port_addresses (ip_address)
-- next
CREATE TABLE floating_ips (
	id VARCHAR(36) NOT NULL, 
	project_id VARCHAR(255) NOT NULL, 
	name VARCHAR(255) NOT NULL, 
	description VARCHAR(255) NOT NULL, 
	tags TEXT NOT NULL, 
	network_id VARCHAR(36) NOT NULL, 
	own_port_id VARCHAR(36) NOT NULL, 
	floating_ip_address VARCHAR(45) NOT NULL, 
	port_id VARCHAR(36), 
	fixed_ip_address VARCHAR(45), 
	router_id VARCHAR(36), 
	created_at VARCHAR(26) NOT NULL, 
	updated_at VARCHAR(26), 
	PRIMARY KEY (id), 
	FOREIGN KEY(network_id) REFERENCES networks (id), 
	FOREIGN KEY(own_port_id) REFERENCES ports (id), 
	FOREIGN KEY(port_id) REFERENCES ports (id), 
	FOREIGN KEY(router_id) REFERENCES routers (id)
)
-- next
CREATE INDEX floating_ips_project ON floating_ips (project_id, created_at, id)
-- next
CREATE UNIQUE INDEX floating_ips_port ON floating_ips (port_id, fixed_ip_address)
-- next
CREATE INDEX floating_ips_created ON floating_ips (created_at, id)
-- next
CREATE INDEX floating_ips_router ON floating_ips (router_id)
-- next
CREATE TABLE trunks (
	id VARCHAR(36) NOT NULL, 
	project_id VARCHAR(255) NOT NULL, 
	name VARCHAR(255) NOT NULL, 
	description VARCHAR(255) NOT NULL, 
	tags TEXT NOT NULL, 
	port_id VARCHAR(36) NOT NULL, 
	admin_state_up BOOLEAN NOT NULL, 
	created_at VARCHAR(26) NOT NULL, 
	updated_at VARCHAR(26), 
	PRIMARY KEY (id), 
	FOREIGN KEY(port_id) REFERENCES ports (id)
)
-- next
CREATE INDEX trunks_created ON trunks (created_at, id)
-- next
CREATE INDEX trunks_project ON trunks (project_id, created_at, id)
-- next
CREATE UNIQUE INDEX trunks_port ON trunks (port_id)
-- next
CREATE TABLE port_forwardings (
	id VARCHAR(36) NOT NULL, 
	project_id VARCHAR(255) NOT NULL, 
	floatingip_id VARCHAR(36) NOT NULL, 
	internal_port_id VARCHAR(36) NOT NULL, 
	internal_ip_address VARCHAR(45) NOT NULL, 
	protocol VARCHAR(8) NOT NULL, 
	internal_port INTEGER NOT NULL, 
	external_port INTEGER NOT NULL, 
	description VARCHAR(255) NOT NULL, 
	created_at VARCHAR(26) NOT NULL, 
	updated_at VARCHAR(26), 
	PRIMARY KEY (id), 
	FOREIGN KEY(floatingip_id) REFERENCES floating_ips (id) ON DELETE CASCADE, 
	FOREIGN KEY(internal_port_id) REFERENCES ports (id)
)
-- next
CREATE INDEX port_forwardings_inner ON port_forwardings (internal_port_id)
-- next
CREATE UNIQUE INDEX port_forwardings_outer ON port_forwardings (floatingip_id, protocol, external_port)
-- next
CREATE TABLE trunk_subports (
	port_id VARCHAR(36) NOT NULL, 
	trunk_id VARCHAR(36) NOT NULL, 
	segmentation_id INTEGER NOT NULL, 
	PRIMARY KEY (port_id), 
	FOREIGN KEY(port_id) REFERENCES ports (id), 
	FOREIGN KEY(trunk_id) REFERENCES trunks (id) ON DELETE CASCADE
)
-- next
CREATE UNIQUE INDEX trunk_subports_tag ON trunk_subports (trunk_id, segmentation_id)
-- next
CREATE TABLE alembic_version_api (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_api_pkc PRIMARY KEY (version_num)
)
-- next
INSERT INTO alembic_version_api (version_num) VALUES ('0001')
